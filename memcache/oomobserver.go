package memcache

import (
	"context"
	"errors"
	"slices"
	"sync"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/opened"
)

// Observers of failed requests are separate from the Config's Observer, which sees every operation
// and must exist from the start. These, for example one that writes a Snapshot of that moment, cost
// nothing until a request fails.

// oomObserver is a registered function; its address identifies the registration.
type oomObserver struct {
	tell func(context.Context, *OutOfMemoryError)
}

// oomObservers is a cache's list of registered functions, in the order of their registration.
type oomObservers struct {
	mu   sync.Mutex // a leaf
	list []*oomObserver
}

// OnOutOfMemory registers a function that is called once for each request that has finally run out
// of memory (torch._C._cuda_attachOutOfMemoryObserver): after the cache's last attempt and the
// reclaimers, and after a wait ([Cache.Wait]), before Alloc returns. It is not called for requests
// that succeed in the end, or for requests of 1 EiB and more, which no device could serve. f gets a
// copy of the error with all its figures, and the request's context. The functions run on the
// goroutine of the allocation, in the order of their registration, without locks, and may use the
// cache. If a request of such a function fails it calls none of them. remove ends the registration,
// and may be called from the function. A request of another goroutine that is failing at that
// moment may still call f.
func (c *Cache) OnOutOfMemory(f func(ctx context.Context, err *OutOfMemoryError)) (remove func()) {
	l, o := &c.oomObservers, &oomObserver{f}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(slices.Clip(l.list), o)
	c.opened.Add(opened.Observer, unsafe.Pointer(o))
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		// Failing requests iterate over the old list, so it is replaced.
		l.list = slices.DeleteFunc(slices.Clone(l.list), func(other *oomObserver) bool { return other == o })
		c.opened.Remove(unsafe.Pointer(o))
	}
}

// tell calls all functions for a failed request. No lock is held.
func (l *oomObservers) tell(ctx context.Context, err error) {
	var oom *OutOfMemoryError
	l.mu.Lock()
	list := l.list
	l.mu.Unlock()
	if len(list) == 0 || !errors.As(err, &oom) || inside(runsObserver) {
		return
	}
	for _, o := range list {
		e := *oom
		e.Holders = slices.Clone(oom.Holders)
		l.run(ctx, o, &e)
	}
}

// run calls one function. Requests that it makes find this call on the stack.
//
//go:noinline
func (*oomObservers) run(ctx context.Context, o *oomObserver, e *OutOfMemoryError) { o.tell(ctx, e) }
