package tensor

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
)

// An Offloader moves what nobody needs for a while to pinned host memory, and back before it is needed. Copies run on streams
// of their own, beside the kernels, and the host waits for none of them. So each hand-over is an event (docs/decisions/offload.md):
//
//	out    the copy stream waits for the runtime's, which wrote the memory; the block is recorded on the copy stream, and freed
//	back   the copy stream waits for the runtime's, which may have used the new block's memory before it was freed
//	use    the runtime's stream waits for the copy
//
// A pinned buffer is written on one of the streams and read on the other: the pool orders these.

// DefaultOffloadMinBytes and DefaultOffloadAhead are the values of an [OffloadConfig] without its own.
const (
	DefaultOffloadMinBytes = 64 << 10
	DefaultOffloadAhead    = 2
)

// OffloadConfig are the options of an [Offloader].
type OffloadConfig struct {
	// MinBytes is how much memory, in bytes, is worth a copy: what is smaller stays. 0 is [DefaultOffloadMinBytes].
	MinBytes int64
	// MaxBytes is how much pinned memory, in bytes, the offloader holds at any moment, what it keeps for reuse included. What finds no
	// room stays on the device. 0: as much as the runtime's pool gives.
	MaxBytes int64
	// Ahead is how many tensors are on their way back before they are needed, while a tape runs backward or an optimiser steps. 0 is
	// [DefaultOffloadAhead]; negative: none, each is brought back when it is needed.
	Ahead int
	// Out and In are the streams of the copies to the host and back, of the runtime's device. They stay the caller's, and are closed
	// after the offloader. nil: the offloader makes one.
	Out, In device.Stream
}

// Offloader moves the memory of a runtime's tensors to pinned host memory and back, on copy streams.
// [Offloader.Offload] takes a tensor's device memory away, [Offloader.Prefetch] begins to bring it
// back, and [Offloader.Fetch] lets the runtime's stream wait for it. [Offloader.FetchKeep] keeps the
// copy on the host as well. An operation on an offloaded tensor returns an error that wraps
// [ErrOffloaded]. Package autograd/offload moves activations, parameters and the optimisers' state
// with it.
//
// Its methods may be called from any goroutine; a tensor, and all that share its memory, belong to one goroutine while it moves.
type Offloader struct {
	rt       *Runtime
	minBytes int64
	maxBytes int64
	ahead    int
	out, in  device.Stream
	own      []device.Stream
	unwatch  func()        // of the cache's pressure
	outs     atomic.Uint64 // copies out

	mu     sync.Mutex
	idle   []idleBuffer // the longest idle first
	coming []*offloaded // that are copied back and not fetched, in that order
	stats  OffloadStats
	closed bool
}

// NewOffloader makes an offloader of rt's tensors. Close ends it, at the latest that of the runtime does.
func NewOffloader(rt *Runtime, cfg OffloadConfig) (*Offloader, error) {
	if rt == nil {
		return nil, fmt.Errorf("tensor: NewOffloader: %w: the runtime is nil", ErrInvalid)
	}
	if cfg.MinBytes < 0 || cfg.MaxBytes < 0 {
		return nil, fmt.Errorf("tensor: NewOffloader: %w: MinBytes %d and MaxBytes %d: want 0 or more", ErrInvalid, cfg.MinBytes, cfg.MaxBytes)
	}
	for _, s := range []device.Stream{cfg.Out, cfg.In} {
		if s != nil && s.Device().ID() != rt.Device().ID() {
			return nil, fmt.Errorf("tensor: NewOffloader: %w: a copy stream is of device %s, and the runtime of %s: want one device",
				ErrInvalid, s.Device().Name(), rt.Device().Name())
		}
	}
	if rt.closed.Load() {
		return nil, fmt.Errorf("tensor: NewOffloader: %w", ErrClosed)
	}
	o := &Offloader{rt: rt, minBytes: cfg.MinBytes, maxBytes: cfg.MaxBytes, ahead: cfg.Ahead, out: cfg.Out, in: cfg.In}
	if o.minBytes == 0 {
		o.minBytes = DefaultOffloadMinBytes
	}
	if o.ahead == 0 {
		o.ahead = DefaultOffloadAhead
	}
	for _, s := range []*device.Stream{&o.out, &o.in} {
		if *s != nil {
			continue
		}
		made, err := rt.Device().NewStream(device.StreamOptions{})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("tensor: NewOffloader: %w", err), o.closeStreams())
		}
		*s, o.own = made, append(o.own, made)
	}
	o.unwatch = rt.cache.OnPressure(o.relieve)
	if !rt.moving.add(o) {
		return nil, errors.Join(fmt.Errorf("tensor: NewOffloader: %w", ErrClosed), o.Close())
	}
	return o, nil
}

// Runtime is whose tensors it moves.
func (o *Offloader) Runtime() *Runtime { return o.rt }

// MinBytes is that of its configuration: what is smaller stays.
func (o *Offloader) MinBytes() int64 { return o.minBytes }

// Ahead is how many tensors users of the offloader bring back before they are needed; 0: none.
func (o *Offloader) Ahead() int { return max(0, o.ahead) }

// Close gives its pinned memory back, waits for its copies and closes its streams. Tensors that are offloaded then can only be
// released: what is to live on is fetched before. It is idempotent. Close of nil does nothing.
func (o *Offloader) Close() error {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	closed := o.closed
	o.closed = true
	o.mu.Unlock()
	if closed {
		return nil
	}
	o.unwatch()
	o.rt.moving.remove(o)
	if err := errors.Join(o.releaseIdle(), o.closeStreams()); err != nil {
		return fmt.Errorf("tensor: closing an offloader: %w", err)
	}
	return nil
}

func (o *Offloader) closeStreams() error {
	var errs []error
	for _, s := range o.own {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// offloaders are those of a runtime, which closes them.
type offloaders struct {
	mu     sync.Mutex
	all    map[*Offloader]struct{}
	closed bool
}

// add is false when the runtime is closed.
func (l *offloaders) add(o *Offloader) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	if l.all == nil {
		l.all = make(map[*Offloader]struct{})
	}
	l.all[o] = struct{}{}
	return true
}

func (l *offloaders) remove(o *Offloader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, o)
}

func (l *offloaders) close() error {
	l.mu.Lock()
	all := l.all
	l.all, l.closed = nil, true
	l.mu.Unlock()
	var errs []error
	for o := range all {
		errs = append(errs, o.Close())
	}
	return errors.Join(errs...)
}
