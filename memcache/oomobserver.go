package memcache

import (
	"context"
	"errors"
	"slices"
	"sync"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/opened"
)

// Who wants to know that a request has failed for good, be it to write down a Snapshot of that moment, is told apart from the
// Config's Observer, which sees every operation and has to be there from the start: this costs a program nothing until its memory is out.

// oomObserver is a registered function; its address is what tells registrations apart.
type oomObserver struct {
	tell func(context.Context, *OutOfMemoryError)
}

// oomObservers are those of a cache, in the order in which they were registered.
type oomObservers struct {
	mu   sync.Mutex // a leaf
	list []*oomObserver
}

// OnOutOfMemory registers a function that is called once for each request that has run out of memory for good
// (torch._C._cuda_attachOutOfMemoryObserver): after the cache's last try and the reclaimers, and after a wait ([Cache.Wait]),
// before Alloc returns. It is not called for requests that succeed in the end, nor for those of 1 EiB and
// more, which no device could serve. It gets a copy of the error with all its figures, and the request's
// context. The functions run on the goroutine of the allocation, in the order in which they were
// registered, without locks, and may use the cache. A request that one of them makes calls none of them if
// it fails. remove ends the registration, and may be called from the function. A request of another
// goroutine that is failing at that moment may still call it.
func (c *Cache) OnOutOfMemory(f func(ctx context.Context, err *OutOfMemoryError)) (remove func()) {
	l, o := &c.oomObservers, &oomObserver{f}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(slices.Clip(l.list), o)
	c.opened.Add(opened.Observer, unsafe.Pointer(o))
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		// Failing requests go through the list as it was, so it is replaced.
		l.list = slices.DeleteFunc(slices.Clone(l.list), func(other *oomObserver) bool { return other == o })
		c.opened.Remove(unsafe.Pointer(o))
	}
}

// tell tells all of a request that failed. No lock is held.
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

// run tells one. Requests that it makes find this call on the stack.
//
//go:noinline
func (*oomObservers) run(ctx context.Context, o *oomObserver, e *OutOfMemoryError) { o.tell(ctx, e) }
