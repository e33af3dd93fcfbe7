package memcache

import (
	"context"
	"math"
	"slices"
	"sync"
)

// reclaimer is a registered function; its address is what tells registrations apart.
type reclaimer struct {
	free func(ctx context.Context, need int64) (freed int64)
}

// reclaimers are those of a cache, in the order in which they were registered.
type reclaimers struct {
	mu   sync.Mutex // a leaf
	list []*reclaimer
}

// add registers one; remove ends that.
func (l *reclaimers) add(r *reclaimer) (remove func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, r)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		// Failing requests go through the list as it was when they failed, so it is replaced.
		l.list = slices.DeleteFunc(slices.Clone(l.list), func(o *reclaimer) bool { return o == r })
	}
}

// pressure is how far a request that found no memory has come with the reclaimers.
type pressure struct {
	asked    bool
	left     []*reclaimer // of those that were registered when it first failed; the first one may have more
	reported int64        // bytes that the first of left says it freed
}

// ask asks the reclaimers until one frees something, and reports whether one did: then the request is worth another
// try. One that says that it freed more than there is altogether is not believed any more, so that a request ends
// whatever reclaimers say. No lock is held while one runs.
func (l *reclaimers) ask(ctx context.Context, need, total int64, p *pressure) bool {
	// A reclaimer that is registered while the request fails is not asked: the list could go on for ever.
	if !p.asked {
		l.mu.Lock()
		p.asked, p.left = true, l.list
		l.mu.Unlock()
	}
	if len(p.left) > 0 && inside(runsReclaimer) {
		return false
	}
	for ; len(p.left) > 0 && ctx.Err() == nil; p.left, p.reported = p.left[1:], 0 {
		r := p.left[0]
		if p.reported > total || !l.has(r) {
			continue
		}
		if freed := l.run(ctx, r, need); freed > 0 {
			p.reported += min(freed, math.MaxInt64-p.reported)
			return true
		}
	}
	return false
}

// run asks one. Requests that it makes find this call on the stack.
//
//go:noinline
func (*reclaimers) run(ctx context.Context, r *reclaimer, need int64) (freed int64) {
	return r.free(ctx, need)
}

// has reports whether a reclaimer was not removed meanwhile.
func (l *reclaimers) has(r *reclaimer) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.list, r)
}
