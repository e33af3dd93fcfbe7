package memcache

import (
	"context"
	"math"
	"slices"
	"sync"
)

// reclaimer is a registered function; its address identifies the registration.
type reclaimer struct {
	free func(ctx context.Context, need int64) (freed int64)
}

// reclaimers is a cache's list of registered functions, in the order of their registration.
type reclaimers struct {
	mu   sync.Mutex // a leaf
	list []*reclaimer
}

// add registers a reclaimer; remove ends the registration.
func (l *reclaimers) add(r *reclaimer) (remove func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, r)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		// Failing requests iterate over the list of the moment when they failed, so it is replaced.
		l.list = slices.DeleteFunc(slices.Clone(l.list), func(o *reclaimer) bool { return o == r })
	}
}

// pressure is the progress of a request that found no memory through the reclaimers.
type pressure struct {
	asked    bool
	left     []*reclaimer // those registered at the first failure and not yet exhausted
	reported int64        // bytes that left[0] has reported as freed
}

// ask calls the reclaimers until one frees something, and reports whether one did, so that the
// request can be retried. A reclaimer that has reported more freed bytes than the device has is
// skipped from then on, so that every request ends. No lock is held during the calls.
func (l *reclaimers) ask(ctx context.Context, need, total int64, p *pressure) bool {
	// Reclaimers that are registered while the request fails are not called, because the list might
	// never end.
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

// run calls one reclaimer. Requests that it makes find this call on the stack.
//
//go:noinline
func (*reclaimers) run(ctx context.Context, r *reclaimer, need int64) (freed int64) {
	return r.free(ctx, need)
}

// has reports whether a reclaimer is still registered.
func (l *reclaimers) has(r *reclaimer) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.list, r)
}
