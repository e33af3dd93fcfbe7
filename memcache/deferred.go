package memcache

import (
	"cmp"
	"errors"
	"slices"

	"github.com/cistern-ml/cistern/device"
)

// Deferred frees: those of blocks that a stream in capture uses. No event can be recorded for them
// yet, because an event recorded on that stream becomes a part of the graph and can't be queried.
// The first request or flush after the capture processes such a free, which then waits for the
// streams as any other free does. With GraphCaptureRecordStreamReuse a request in the capture may
// reuse the block.
//
// In PyTorch, and here with Exact, every free of a block with recorded streams is deferred while a
// pool is entered (Pool.Enter), by a capture or otherwise, and no request polls the other pending
// frees. When the deferred frees are processed, the streams that were recorded while a pool was
// entered are dropped: work that a capture queued there runs in replays, which are ordered by
// themselves.

// enter counts an entered pool.
func (p *pendingFrees) enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entered.Add(1)
}

// leave ends an enter, unless Close has ended all.
func (p *pendingFrees) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.entered.Load() > 0 {
		p.entered.Add(-1)
	}
}

// inContext reports whether a pool is entered; never without Exact.
func (all *shards) inContext() bool { return all.exact != nil && all.exact.entered.Load() > 0 }

// endEntered ends all enters, for Close.
func (all *shards) endEntered() {
	if p := all.exact; p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.entered.Store(0)
	}
}

// captured reports whether one of the streams is in a capture.
func captured(streams []device.Stream) bool {
	return slices.ContainsFunc(streams, func(s device.Stream) bool {
		c, ok := s.(device.GraphCapturer)
		return ok && c.Capturing()
	})
}

// deferFree defers the free of a block that other streams use, if a pool is entered or one of the
// streams is in a capture. It reports whether it did.
func (p *pendingFrees) deferFree(h *handout) bool {
	if p.entered.Load() == 0 && !captured(h.uses) {
		return false
	}
	if p.shards.config().GraphCaptureRecordStreamReuse {
		h.marks = marksOf(h)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.deferred = append(p.deferred, h)
	p.deferredCount.Add(1)
	p.events.Add(1) // so that requests poll
	return true
}

// marksOf returns marks of the streams that use a block, its own stream first; nil if one is not in
// a capture.
func marksOf(h *handout) []device.CaptureMark {
	marks := make([]device.CaptureMark, 0, 1+len(h.uses))
	for i := -1; i < len(h.uses); i++ {
		s := h.shard.stream
		if i >= 0 {
			s = h.uses[i]
		}
		order, ok := s.(device.CaptureOrder)
		if !ok {
			return nil
		}
		m := order.CaptureMark()
		if m == nil {
			return nil
		}
		marks = append(marks, m)
	}
	return marks
}

// takeDeferred removes the deferred frees that are ready and returns them. PyTorch processes them
// in the order of a table by their heap addresses; here the order is that of the streams that use
// them, as with completions.
func (p *pendingFrees) takeDeferred(ready func(*handout) bool) (list []*handout) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deferred = slices.DeleteFunc(p.deferred, func(h *handout) bool {
		if !ready(h) {
			return false
		}
		list = append(list, h)
		return true
	})
	p.deferredCount.Store(int32(len(p.deferred)))
	notNegative("the number of pending events", p.events.Add(-int64(len(list))))
	slices.SortStableFunc(list, func(a, b *handout) int { return cmp.Compare(a.uses[0].ID(), b.uses[0].ID()) })
	return list
}

// recordDeferred processes the deferred frees, unless a pool is entered or their streams are still
// in a capture. No lock is held.
func (p *pendingFrees) recordDeferred() error {
	list := p.takeDeferred(func(h *handout) bool { return p.entered.Load() == 0 && !captured(h.uses) })
	var errs []error
	for _, h := range list {
		p.mu.Lock()
		h.uses = slices.DeleteFunc(h.uses, func(s device.Stream) bool { return slices.Contains(h.inside, s.ID()) })
		h.eventsLeft = int32(len(h.uses))
		p.mu.Unlock()
		errs = append(errs, p.record(h, false))
	}
	return errors.Join(errs...)
}

// reuseDeferred completes the frees of blocks of a stream in capture, if what it captures from now
// on runs after all uses of the block. No lock is held.
func (p *pendingFrees) reuseDeferred(s device.Stream) {
	if s == nil || !p.shards.config().GraphCaptureRecordStreamReuse {
		return
	}
	for _, h := range p.takeDeferred(func(h *handout) bool {
		return h.shard.id == s.ID() && h.marks != nil && !slices.ContainsFunc(h.marks, func(m device.CaptureMark) bool { return !m.Before(s) })
	}) {
		p.mu.Lock()
		h.eventsLeft, h.recording = 0, false
		h.forgetUses()
		p.mu.Unlock()
		p.complete(h, false)
	}
}
