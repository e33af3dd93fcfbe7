package tensor

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// offloaded holds a storage's bytes while it has no block.
type offloaded struct {
	by      *Offloader
	buffer  transfer.Buffer
	label   memcache.Label
	renamed bool   // label was set while the storage was offloaded
	version uint64 // of the storage, when it came back and these bytes were kept
	number  uint64 // of the copy that wrote them

	// Under the offloader's lock.
	block memcache.Block // destination of the copy back; zero until Prefetch
	ready device.Event   // the end of that copy; nil if there is none
}

// Offload copies the memory of t, and so of all tensors that share it, to pinned memory. The copy
// is queued after the work on the runtime's stream, and the device memory is freed once it has run.
// Offload does not wait for that, but it may wait for pinned memory that is short. t and the others
// keep shape, dtype, version and label, and can be released; other operations on them return errors
// that wrap [ErrOffloaded] until Fetch. If streams other than the runtime's use the memory, the
// caller records ([Tensor.RecordStream]) and orders that work.
//
// If [Offloader.FetchKeep] has kept the bytes and nothing was written since ([Tensor.Version]),
// nothing is copied: the memory is freed.
//
// The result reports whether the memory is offloaded. t stays on the device, without an error, if
// the memory is small, if it belongs to a caller ([Runtime.FromBlock]) or to a graph, or if pinned
// memory is short.
func (o *Offloader) Offload(ctx context.Context, t *Tensor) (bool, error) {
	if err := o.check(ctx, "Offload", t); err != nil {
		return false, err
	}
	if a := t.store.away.Load(); a != nil {
		block, ready := o.takeComing(a)
		return true, giveUp(ctx, block, ready)
	}
	in, err := o.rt.acquire("Offload", t)
	if err != nil {
		return false, err
	}
	defer in.release()
	s := t.store
	if s.borrowed || s.replayed() || s.bytes == 0 || s.bytes < o.minBytes {
		return false, nil
	}
	a, unchanged, err := o.copied(ctx, s)
	if err != nil {
		return false, t.offloadError("Offload", err)
	}
	if a == nil {
		o.count(func(st *OffloadStats) { st.Stayed++; st.StayedBytes += s.bytes })
		return false, nil
	}
	block := s.block
	a.label, a.renamed = block.Label(), false
	s.kept = nil
	s.away.Store(a)
	s.block, s.host = memcache.Block{}, nil
	o.count(func(st *OffloadStats) {
		move(&st.Offloaded, 1)
		move(&st.OffloadedBytes, s.bytes)
		if unchanged {
			st.Unchanged++
		}
	})
	if err := block.FreeContext(ctx); err != nil {
		return true, t.offloadError("Offload", err)
	}
	return true, nil
}

// copied returns the storage's bytes in pinned memory, to which their copy may still be queued; nil
// if there is no pinned memory. unchanged reports that they were there already.
func (o *Offloader) copied(ctx context.Context, s *storage) (a *offloaded, unchanged bool, err error) {
	if s.kept != nil && s.kept.by != o {
		if err := s.forgetKept(); err != nil {
			return nil, false, err
		}
	}
	if a := s.kept; a != nil {
		if a.version == s.writes() {
			return a, true, nil
		}
		if a.number, err = o.copyOut(ctx, s, a.buffer); err != nil {
			s.kept = nil
			o.rt.parked.add(o.drop(a.buffer))
			return nil, false, err
		}
		return a, false, nil
	}
	buffer, err := o.take(ctx, s.bytes)
	if err != nil || buffer.IsZero() {
		return nil, false, err
	}
	number, err := o.copyOut(ctx, s, buffer)
	if err != nil {
		o.rt.parked.add(o.drop(buffer))
		return nil, false, err
	}
	return &offloaded{by: o, buffer: buffer, number: number}, false, nil
}

// copyOut queues the copy to the host and returns its number. The pool records the block on the
// copy stream, which the block's free needs.
func (o *Offloader) copyOut(ctx context.Context, s *storage, buffer transfer.Buffer) (uint64, error) {
	if err := o.order(o.rt.stream, o.out); err != nil {
		return 0, err
	}
	if _, err := o.rt.pool.D2H(ctx, o.out, buffer, 0, s.block, 0, s.bytes); err != nil {
		// The copy may be in flight, and the tensor stays: its next writer waits for the copy.
		return 0, errors.Join(err, o.order(o.out, o.rt.stream))
	}
	return o.outs.Add(1), nil
}

// join makes the runtime's stream wait for the copy to block, and reports the wait to the cache. So
// memory becomes free in the order of the stream, instead of when the device gets there: the host
// may be steps ahead. When the block is freed, it needs no event of the copy stream. If the bytes
// are those of the last copy out, all copies out have run by then, and the blocks that they read
// are free.
func (o *Offloader) join(a *offloaded, block memcache.Block, ready device.Event) error {
	if err := o.rt.stream.Wait(ready); err != nil {
		return err
	}
	if err := block.EraseStream(o.in); err != nil {
		return err
	}
	if o.outs.Load() != a.number {
		return nil
	}
	return o.rt.cache.WaitStream(o.rt.stream, o.out)
}

// Prefetch begins to copy the memory of t back, if it is offloaded: it allocates on the runtime's
// stream, with the label that the memory had, and queues the copy. Call [Offloader.Fetch] before
// using t. Without device memory Prefetch returns an error that wraps [memcache.ErrOutOfMemory],
// and t stays offloaded.
func (o *Offloader) Prefetch(ctx context.Context, t *Tensor) error {
	if err := o.check(ctx, "Prefetch", t); err != nil {
		return err
	}
	began, err := o.begin(context.WithValue(ctx, aheadKey{}, true), "Prefetch", t)
	if began {
		o.count(func(s *OffloadStats) { s.Prefetched++ })
	}
	return err
}

// begin reports whether this call queued the copy.
func (o *Offloader) begin(ctx context.Context, call string, t *Tensor) (bool, error) {
	s := t.store
	a := s.away.Load()
	if a == nil || o.isComing(a) {
		return false, nil
	}
	block, err := o.rt.cache.Alloc(memcache.WithLabel(ctx, a.label), s.bytes, o.rt.stream)
	if err != nil {
		return false, t.offloadError(call, fmt.Errorf("device memory for %d bytes that are offloaded: %w", s.bytes, err))
	}
	ready, err := o.copyBack(ctx, a, block, s.bytes)
	if err != nil {
		o.rt.parked.add(block.FreeContext(ctx))
		return false, t.offloadError(call, err)
	}
	o.land(a, block, ready)
	return true, nil
}

// copyBack queues the copy to the device, and returns an event recorded after it.
func (o *Offloader) copyBack(ctx context.Context, a *offloaded, block memcache.Block, bytes int64) (device.Event, error) {
	if err := o.order(o.rt.stream, o.in); err != nil {
		return nil, err
	}
	if _, err := o.rt.pool.H2D(ctx, o.in, block, 0, a.buffer, 0, bytes); err != nil {
		ctx = context.WithoutCancel(ctx)
		if errors.Is(a.buffer.Wait(ctx), transfer.ErrInFlight) {
			err = errors.Join(err, o.rescue(ctx, a, block, bytes))
		}
		return nil, err
	}
	return o.mark(o.in)
}

// rescue moves an offloaded storage's bytes to another buffer, by way of the block to which their
// copy is queued: the pool can't track the end of that copy, and refuses the buffer from then on.
func (o *Offloader) rescue(ctx context.Context, a *offloaded, block memcache.Block, bytes int64) error {
	buffer, err := o.take(ctx, bytes)
	if err == nil && buffer.IsZero() {
		err = errors.New("no pinned memory for another buffer")
	}
	if err == nil {
		_, err = o.rt.pool.D2H(ctx, o.in, buffer, 0, block, 0, bytes)
	}
	if err != nil {
		return fmt.Errorf("the bytes are lost: %w", err)
	}
	a.buffer, buffer = buffer, a.buffer
	return o.drop(buffer)
}

// Fetch copies the memory of t back, if it is offloaded and Prefetch has not begun that. It makes
// the runtime's stream wait for the copy, so that operations on t can be queued; the host does not
// wait. The pinned memory is released, including memory that an earlier FetchKeep kept. Its errors
// are those of Prefetch.
func (o *Offloader) Fetch(ctx context.Context, t *Tensor) error {
	return o.fetch(ctx, "Fetch", t, false)
}

// FetchKeep is Fetch, except that t keeps the pinned memory. As long as t is not written,
// offloading it again frees the device memory without a copy; after a write, it copies into the
// same pinned memory. Writes other than by operations of this package must be reported with
// [IncrementVersion]. FetchKeep is for tensors that are read many times and seldom written, such as
// parameters.
func (o *Offloader) FetchKeep(ctx context.Context, t *Tensor) error {
	return o.fetch(ctx, "FetchKeep", t, true)
}

func (o *Offloader) fetch(ctx context.Context, call string, t *Tensor, keep bool) error {
	if err := o.check(ctx, call, t); err != nil {
		return err
	}
	s := t.store
	a := s.away.Load()
	if a == nil {
		if !keep && s.kept != nil && s.kept.by == o {
			return s.forgetKept()
		}
		return nil
	}
	var block memcache.Block
	var ready device.Event
	began := false
	for ready == nil { // an allocation of another goroutine may give the copy up in between
		var err error
		if began, err = o.begin(ctx, call, t); err != nil {
			return err
		}
		block, ready = o.takeComing(a)
	}
	if err := o.join(a, block, ready); err != nil {
		if began {
			err = errors.Join(err, giveUp(ctx, block, ready))
		} else {
			o.land(a, block, ready) // as Prefetch left it
		}
		return t.offloadError(call, err)
	}
	s.block, s.host = block, o.rt.hostBytes(block)
	s.away.Store(nil)
	o.count(func(st *OffloadStats) { st.Fetched++; back(st, s.bytes) })
	err := ready.Close()
	if keep {
		a.version, s.kept = s.writes(), a
	} else {
		err = errors.Join(err, o.give(a.buffer))
	}
	if a.renamed {
		err = errors.Join(err, block.SetLabel(a.label))
	}
	if err != nil {
		return t.offloadError(call, err)
	}
	return nil
}

// giveUp cancels a copy back. The bytes are still on the host.
func giveUp(ctx context.Context, block memcache.Block, ready device.Event) error {
	if ready == nil {
		return nil
	}
	return errors.Join(ready.Close(), block.FreeContext(ctx))
}

// end releases the pinned memory of a storage's bytes.
func (a *offloaded) end(bytes int64) error {
	a.by.count(func(st *OffloadStats) { back(st, bytes) })
	return a.by.give(a.buffer)
}

// forgetKept releases the pinned memory that a storage has kept.
func (s *storage) forgetKept() error {
	a := s.kept
	s.kept = nil
	if a == nil {
		return nil
	}
	return a.by.give(a.buffer)
}

// release releases everything that an offloaded storage holds.
func (a *offloaded) release(ctx context.Context, bytes int64) error {
	block, ready := a.by.takeComing(a)
	return errors.Join(giveUp(ctx, block, ready), a.end(bytes))
}

// order makes work that is queued on then from now on run after the work queued on first so far.
func (o *Offloader) order(first, then device.Stream) error {
	e, err := o.mark(first)
	if err != nil {
		return err
	}
	defer e.Close()
	return then.Wait(e)
}

// mark returns an event recorded after the work queued on s.
func (o *Offloader) mark(s device.Stream) (device.Event, error) {
	e, err := o.rt.Device().NewEvent(device.EventOptions{})
	if err != nil {
		return nil, err
	}
	if err := s.Record(e); err != nil {
		_ = e.Close()
		return nil, err
	}
	return e, nil
}

// check returns an error if the offloader can't move t.
func (o *Offloader) check(ctx context.Context, call string, t *Tensor) error {
	if o == nil {
		return fmt.Errorf("tensor: %s: %w: the offloader is nil", call, ErrInvalid)
	}
	if ctx == nil {
		return fmt.Errorf("tensor: %s: %w: the context is nil; use context.Background()", call, ErrInvalid)
	}
	o.mu.Lock()
	closed := o.closed
	o.mu.Unlock()
	if closed {
		return fmt.Errorf("tensor: %s: the offloader is closed: %w", call, ErrClosed)
	}
	if err := o.rt.checkOwn(call, true, t); err != nil {
		return err
	}
	if err := o.rt.refuseCaptured(call, "memory stays where it is while a graph uses it"); err != nil {
		return err
	}
	if a := t.store.away.Load(); a != nil && a.by != o {
		return fmt.Errorf("tensor: %s of %v %v: %w: another offloader has offloaded it", call, t.dtype, t.shape, ErrInvalid)
	}
	return nil
}

func (t *Tensor) offloadError(call string, err error) error {
	return fmt.Errorf("tensor: %s of %v %v: %w", call, t.dtype, t.shape, err)
}
