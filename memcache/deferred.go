package memcache

import (
	"cmp"
	"errors"
	"slices"

	"github.com/cistern-ml/cistern/device"
)

// What a pool that is entered holds up, with Exact. In PyTorch a capture, and use_mem_pool too, stops on the whole device what
// would ask a stream or wait for it, as a stream that is captured must not be asked: no request looks at pending frees,
// a block that other streams use is put aside when it is freed, and out of memory is final without a flush. Without Exact a
// request from a pool concerns that pool alone, and none of this is there.
//
// A free that was put aside is taken up by the next request, or EmptyCache, when no pool is entered. A capture orders what it
// has captured by itself: the streams that were recorded inside of a context are forgotten, and those from before get their
// events now.

// enter begins a context.
func (p *pendingFrees) enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entered.Add(1)
}

// leave ends a context, unless Close has ended all.
func (p *pendingFrees) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.entered.Load() > 0 {
		p.entered.Add(-1)
	}
}

// inContext reports whether a pool is entered; never without Exact.
func (all *shards) inContext() bool { return all.exact != nil && all.exact.entered.Load() > 0 }

// endEntered ends all contexts, for Close.
func (all *shards) endEntered() {
	if p := all.exact; p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.entered.Store(0)
	}
}

// deferFree puts the free of a block aside that other streams use, if a pool is entered.
func (p *pendingFrees) deferFree(h *handout) bool {
	if p.entered.Load() == 0 {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.entered.Load() == 0 || p.closed {
		return false
	}
	p.deferred = append(p.deferred, h)
	p.events.Add(1) // so that requests look
	return true
}

// recordDeferred takes up the frees that were put aside, unless a pool is still entered. PyTorch goes through them in the order of a
// table by their addresses in the heap; here it is that of the streams that use them, as with completions. No lock is held.
func (p *pendingFrees) recordDeferred() error {
	p.mu.Lock()
	if p.entered.Load() > 0 || len(p.deferred) == 0 {
		p.mu.Unlock()
		return nil
	}
	list := p.deferred
	p.deferred = nil
	notNegative("the number of pending events", p.events.Add(-int64(len(list))))
	slices.SortStableFunc(list, func(a, b *handout) int { return cmp.Compare(a.uses[0].ID(), b.uses[0].ID()) })
	for _, h := range list {
		h.uses = slices.DeleteFunc(h.uses, func(s device.Stream) bool { return slices.Contains(h.inside, s.ID()) })
		h.eventsLeft = int32(len(h.uses))
	}
	p.mu.Unlock()
	var errs []error
	for _, h := range list {
		errs = append(errs, p.record(h, h.uses, false))
	}
	return errors.Join(errs...)
}
