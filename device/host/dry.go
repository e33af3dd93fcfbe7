package host

import (
	"sync"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/dryhost"
	"github.com/cistern-ml/cistern/internal/race"
)

// A dry device has addresses without memory. It completes operations as late as any device can:
// when the host waits for anything, frees memory, or fills a stream's queue. So a block that
// another stream uses becomes free when it would on a slow device, and at the same point in every
// run. Its streams have no goroutines. In everything else it is a host device: argument checks,
// live memory, captures and graphs.

func init() { dryhost.New = newDry }

func newDry(cfg dryhost.Config) (device.Device, error) {
	d, err := New(Config{Capacity: cfg.Capacity, Inaccessible: true})
	if err != nil {
		return nil, err
	}
	d.dry = true
	d.mem.next = d.mem.apart
	d.mem.apart = 0
	d.mem.piece = maxCapacity
	d.mem.pinnable = maxCapacity
	d.mem.reservable = max(cfg.Addresses, d.mem.reservable)
	d.front = cfg.Front(d)
	return d.front, nil
}

// memory returns bytes bytes for the device. On a dry device these are addresses without memory.
func (t *table) memory(bytes, align int64) []byte {
	if t.next == 0 {
		return aligned(bytes, align)
	}
	t.lock()
	first := t.next
	t.next += uintptr(bytes+granularity-1) &^ (granularity - 1)
	t.unlock()
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&first)), bytes)
}

// pinnedMemory returns memory for AllocPinned.
func (t *table) pinnedMemory(bytes int64) ([]byte, error) {
	if t.next == 0 {
		return aligned(bytes, alignment), nil
	}
	b, err := newPages(bytes)
	if err != nil {
		return nil, &device.Error{Op: "AllocPinned", Device: string(self), Bytes: bytes, Code: device.CodeOutOfMemory,
			Err: device.ErrOutOfMemory, Detail: err.Error()}
	}
	return b, nil
}

// behind holds the operations that a dry device has not completed, in the order of the calls. Any
// device could run them in this order. Its lock is hidden from the race detector.
type behind struct {
	mu   sync.Mutex
	ops  []latent
	head int // index of the oldest operation
}

type latent struct {
	stream *stream
	op     *op
}

//go:norace
func (b *behind) lock() {
	race.Disable()
	b.mu.Lock()
}

//go:norace
func (b *behind) unlock() {
	b.mu.Unlock()
	race.Enable()
}

// pretend queues an operation of a dry device.
//
//go:norace
func (s *stream) pretend(op string, o *op) error {
	b := &s.dev.behind
	b.lock()
	defer b.unlock()
	if s.queue.isClosed() {
		o.uses.drop()
		return self.StreamClosed(op, s.id)
	}
	switch o.kind {
	case opRecord:
		o.rec.late = s.dev
		o.event.last.Store(o.rec)
		o.event.captured.Store(nil)
	case opWait:
		if o.rec.late == nil {
			o.uses.drop()
			return self.Invalid(op, 0, "the event belongs to a device that computes; a dry device can't wait for it")
		}
	// No memory depends on an observer's callback.
	case opDone:
		s.dev.callbacks.push(o.fn)
		return nil
	}
	b.ops = append(b.ops, latent{s, o})
	s.queue.mu.Lock()
	s.queue.queued++
	n := s.queue.queued
	s.queue.mu.Unlock()
	for n-s.queue.done.Load() > depth {
		b.next()
	}
	return nil
}

// catchUp completes everything that is queued on a dry device.
//
//go:norace
func (d *Device) catchUp() {
	if !d.dry {
		return
	}
	b := &d.behind
	b.lock()
	for b.head < len(b.ops) {
		b.next()
	}
	b.ops, b.head = b.ops[:0], 0
	b.unlock()
}

// caughtUp lets a dry device catch up, and reports whether the stream is a dry device's. The caller
// may know the stream only from the device's list, which is hidden from the race detector.
//
//go:norace
func (s *stream) caughtUp() bool {
	s.dev.catchUp()
	return s.dev.dry
}

// next completes the oldest operation. The caller holds the lock.
//
//go:norace
func (b *behind) next() {
	s, o := b.ops[b.head].stream, b.ops[b.head].op
	b.ops[b.head] = latent{}
	if b.head++; b.head > depth && b.head > len(b.ops)/2 {
		b.ops, b.head = b.ops[:copy(b.ops, b.ops[b.head:])], 0
	}
	switch o.kind {
	case opRecord:
		o.rec.on = s.id
		o.rec.release()
		o.rec.complete(time.Since(s.dev.start))
	case opWait:
	case opReplay:
		p := &o.captured.progress
		for c := p.lane.first; c != nil; c = c.next.Load() {
			c.zero()
		}
		p.run.finish(p.lane, p.lane.first)
	default:
		o.zero()
	}
	o.uses.drop()
	o.clear()
	s.queue.giveBack(o)
	s.queue.done.Add(1)
}

// zero fills the host memory that a copy writes with zeros.
//
//go:norace
func (o *op) zero() {
	if o.kind != opCopy && o.kind != opCopy2D {
		return
	}
	for u := &o.uses; u != nil; u = u.more {
		for i := range u.n {
			x := &u.item[i]
			switch {
			case !x.write || !x.seg.kind.onHost():
			case o.rows != nil:
				for r := range o.rows.height {
					clear(x.bytes[r*o.rows.toPitch:][:o.rows.width])
				}
			case x.seg.kind == pinned:
				clearPages(x.bytes)
			default:
				clear(x.bytes)
			}
		}
	}
}
