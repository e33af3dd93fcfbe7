package tensor

import (
	"context"
	"errors"
	"math/bits"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/transfer"
)

// An offloader keeps its pinned buffers from step to step, because driver calls for pinned memory
// are slow and wait for the device. A buffer may be taken again while the last copy that reads it
// is queued, because the pool makes the stream that writes it wait. The pool itself returns only
// buffers without pending copies, and would need more memory the further the host is ahead.

// idleBuffer is pinned memory that holds no tensor's bytes.
type idleBuffer struct {
	transfer.Buffer
	size int64 // as requested from the pool
}

// pinnedSize returns the size of a buffer for n bytes. It is rounded up in steps of an eighth, so
// that a slightly smaller batch finds the buffers of the one before.
func pinnedSize(n int64) int64 {
	step := int64(1) << max(9, bits.Len64(uint64(n))-4)
	return (n + step - 1) / step * step
}

// take returns pinned memory for n bytes, or the zero Buffer if there is none. It takes the buffer
// that has been idle the longest.
func (o *Offloader) take(ctx context.Context, n int64) (transfer.Buffer, error) {
	size := pinnedSize(n)
	o.mu.Lock()
	for i, b := range o.idle {
		if b.size == size {
			o.idle = append(o.idle[:i], o.idle[i+1:]...)
			o.mu.Unlock()
			return b.Buffer, nil
		}
	}
	victims, room := o.reserve(size)
	o.mu.Unlock()
	err := release(victims)
	if !room || err != nil {
		return transfer.Buffer{}, err
	}
	b, err := o.rt.pool.Get(ctx, size)
	if noMemory(err) { // idle buffers of other sizes may hold the memory
		if err = o.releaseIdle(); err == nil {
			b, err = o.rt.pool.Get(ctx, size)
		}
	}
	if err != nil {
		o.count(func(s *OffloadStats) { unpin(s, size) })
		if noMemory(err) {
			err = nil
		}
		return transfer.Buffer{}, err
	}
	return b, nil
}

// reserve counts size more bytes as held. It removes idle buffers if the limit requires it, or if
// sizes that are no longer used have added up: the offloader holds at most twice the most bytes
// that were ever offloaded at once. room is false if the limit allows no buffer; then nothing
// changes. The caller holds the lock.
func (o *Offloader) reserve(size int64) (victims []idleBuffer, room bool) {
	held := o.stats.PinnedBytes.Current + size
	over := held - 2*max(o.stats.OffloadedBytes.Peak, held-o.idleBytes())
	if o.maxBytes > 0 {
		if held-o.idleBytes() > o.maxBytes {
			return nil, false
		}
		over = max(over, held-o.maxBytes)
	}
	for len(o.idle) > 0 && over > 0 {
		over -= o.idle[0].size
		unpin(&o.stats, o.idle[0].size)
		victims = append(victims, o.idle[0])
		o.idle = o.idle[1:]
	}
	move(&o.stats.PinnedBytes, size)
	return victims, true
}

func (o *Offloader) idleBytes() (n int64) {
	for _, b := range o.idle {
		n += b.size
	}
	return n
}

// give returns a buffer to the offloader. Queued copies may still use it.
func (o *Offloader) give(b transfer.Buffer) error {
	size := int64(b.Len())
	o.mu.Lock()
	if !o.closed {
		o.idle = append(o.idle, idleBuffer{b, size})
		o.mu.Unlock()
		return nil
	}
	o.mu.Unlock()
	return o.drop(b)
}

// drop releases a buffer to the pool.
func (o *Offloader) drop(b transfer.Buffer) error {
	o.count(func(s *OffloadStats) { unpin(s, int64(b.Len())) })
	return b.Release()
}

// releaseIdle releases the idle buffers to the pool.
func (o *Offloader) releaseIdle() error {
	o.mu.Lock()
	idle := o.idle
	o.idle = nil
	for _, b := range idle {
		unpin(&o.stats, b.size)
	}
	o.mu.Unlock()
	return release(idle)
}

func release(bs []idleBuffer) error {
	var errs []error
	for _, b := range bs {
		errs = append(errs, b.Release())
	}
	return errors.Join(errs...)
}

func unpin(s *OffloadStats, size int64) { move(&s.PinnedBytes, -size) }

// noMemory reports whether pinned memory ran out.
func noMemory(err error) bool {
	return errors.Is(err, transfer.ErrLimit) || errors.Is(err, device.ErrOutOfMemory)
}
