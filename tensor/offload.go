package tensor

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
)

// An Offloader moves memory that is not needed for a while to pinned host memory, and back before
// it is needed. Copies run on streams of their own, concurrently with the kernels, and the host
// waits for none of them. So events order each step (docs/decisions/offload.md):
//
//   - out: the copy stream waits for the runtime's, which wrote the memory. The block is recorded
//     on the copy stream, and freed.
//   - back: the copy stream waits for the runtime's, which may have used the new block's memory
//     before it was freed.
//   - use: the runtime's stream waits for the copy.
//
// A pinned buffer is written on one of the streams and read on the other: the pool orders these.

// DefaultOffloadMinBytes and DefaultOffloadAhead are the defaults of [OffloadConfig].
const (
	DefaultOffloadMinBytes = 64 << 10
	DefaultOffloadAhead    = 2
)

// OffloadConfig are the options of an [Offloader].
type OffloadConfig struct {
	// MinBytes is the smallest size, in bytes, that is worth a copy; smaller tensors stay. 0 means
	// [DefaultOffloadMinBytes].
	MinBytes int64
	// MaxBytes is the maximum pinned memory, in bytes, that the offloader holds at any moment,
	// including buffers kept for reuse. Tensors for which there is no buffer stay on the device. 0:
	// as much as the runtime's pool has.
	MaxBytes int64
	// Ahead is how many tensors are copied back before they are needed, while a tape runs backward
	// or an optimiser steps. 0 means [DefaultOffloadAhead]. With a negative number, each tensor is
	// copied back when it is needed.
	Ahead int
	// Out and In are the streams of the copies to the host and back, of the runtime's device. The
	// caller owns them, and closes them after the offloader. nil: the offloader makes one.
	Out, In device.Stream
}

// Offloader moves the memory of a runtime's tensors to pinned host memory and back, on copy
// streams. [Offloader.Offload] copies a tensor to the host and frees its device memory.
// [Offloader.Prefetch] begins to copy it back, and [Offloader.Fetch] makes the runtime's stream
// wait for that. [Offloader.FetchKeep] keeps the copy on the host as well. An operation on an
// offloaded tensor returns an error that wraps [ErrOffloaded]. Package autograd/offload uses an
// Offloader to move activations, parameters and the optimisers' state.
//
// Its methods may be called from any goroutine. While a tensor moves, one goroutine alone may use
// it and the tensors that share its memory.
type Offloader struct {
	rt       *Runtime
	minBytes int64
	maxBytes int64
	ahead    int
	out, in  device.Stream
	own      []device.Stream
	unwatch  func()        // stops the watch of the cache's pressure
	outs     atomic.Uint64 // number of copies out

	mu     sync.Mutex
	idle   []idleBuffer // the longest idle first
	coming []*offloaded // copied back and not yet fetched, in that order
	stats  OffloadStats
	closed bool
}

// NewOffloader returns an offloader of rt's tensors. If it is still open, the runtime's Close
// closes it.
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

// Runtime returns the runtime of the tensors that the offloader moves.
func (o *Offloader) Runtime() *Runtime { return o.rt }

// MinBytes returns the size, in bytes, below which tensors stay on the device.
func (o *Offloader) MinBytes() int64 { return o.minBytes }

// Ahead returns how many tensors users of the offloader copy back before they are needed; 0: none.
func (o *Offloader) Ahead() int { return max(0, o.ahead) }

// Close releases its pinned memory, waits for the copies on the streams that it made, and closes
// these. Tensors that are still offloaded can then only be released, so fetch the tensors that are
// still needed before. Close is idempotent. Close of nil does nothing.
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

// offloaders are the open offloaders of a runtime, which closes them.
type offloaders struct {
	mu     sync.Mutex
	all    map[*Offloader]struct{}
	closed bool
}

// add returns false if the runtime is closed.
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
