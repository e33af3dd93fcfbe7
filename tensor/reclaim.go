package tensor

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
)

// A tensor that was not released is found in two ways. Go's garbage collector runs its cleanup
// (died) some time after the tensor became unreachable, which costs nothing until then. That may be
// long after an allocation has failed, because the collector does not know that a handle of a few
// hundred bytes holds gigabytes of a GPU. So the cache calls reclaim before it gives up. reclaim
// runs a collection and checks the weak pointers of all live tensors. The pointer to an unreachable
// tensor is nil as soon as the collection has ended, whereas cleanups run later. A collection stops
// the program only briefly, but it uses a processor for a time that grows with the Go heap, so it
// runs at most once a second. The handle's released flag makes sure that only the first of the two
// ways frees the memory.

// reclaimer finds unreachable tensors that were not released. Its lock is never held while memory
// is freed.
type reclaimer struct {
	mu      sync.Mutex
	bytes   int64         // freed for tensors found dead since the cache last asked
	dying   int           // cleanups in progress
	idle    chan struct{} // closed when dying becomes 0; nil unless a goroutine waits
	running *collection   // the collection in progress, or nil
	last    time.Time     // end of the last collection
}

// collection is a garbage collection that is run to free device memory. freed is set when done is
// closed.
type collection struct {
	done  chan struct{}
	freed int64
}

// reclaimInterval is the minimum time between two collections.
const reclaimInterval = time.Second

// reclaim is called when the cache has run out of memory: it collects garbage and frees the memory
// of unreleased tensors that are unreachable. Calls during a collection share its result.
func (rt *Runtime) reclaim(ctx context.Context, _ int64) (freed int64) {
	n, _ := rt.live.count()
	gc := &rt.gc
	gc.mu.Lock()
	c := gc.running
	if c != nil {
		gc.mu.Unlock()
		select {
		case <-c.done:
			return c.freed
		case <-ctx.Done():
			return 0
		}
	}
	due := n > 0 && time.Since(gc.last) >= reclaimInterval
	if !due && gc.dying == 0 {
		freed, gc.bytes = gc.bytes, 0 // by cleanups that may have come too late for the allocation
		gc.mu.Unlock()
		return freed
	}
	c = &collection{done: make(chan struct{})}
	gc.running = c
	gc.mu.Unlock()

	var dead []Leak
	if due {
		dead = rt.collectGarbage()
	}
	gc.awaitCleanups()

	gc.mu.Lock()
	c.freed, gc.bytes, gc.running = gc.bytes, 0, nil
	if due {
		gc.last = time.Now()
	}
	gc.mu.Unlock()
	close(c.done)
	for _, leak := range dead {
		rt.report(leak)
	}
	return c.freed
}

// collectGarbage does not rely on cleanups, which run some time later: a weak pointer is nil as
// soon as the collection has ended.
func (rt *Runtime) collectGarbage() (dead []Leak) {
	rt.live.ageAll()
	runtime.GC()
	for _, h := range rt.live.all((*handle).dropped) {
		if leak, ok := h.reclaim(); ok {
			dead = append(dead, leak)
		}
	}
	return dead
}

// awaitCleanups waits for the cleanups in progress.
func (gc *reclaimer) awaitCleanups() {
	gc.mu.Lock()
	if gc.dying > 0 && gc.idle == nil {
		gc.idle = make(chan struct{})
	}
	idle := gc.idle
	gc.mu.Unlock()
	if idle != nil {
		<-idle
	}
}

// died runs on a goroutine of the garbage collector when a tensor was found dead.
func (h *handle) died() {
	gc := &h.rt.gc
	gc.mu.Lock()
	gc.dying++
	gc.mu.Unlock()

	leak, ok := h.reclaim()

	gc.mu.Lock()
	if gc.dying--; gc.dying == 0 && gc.idle != nil {
		close(gc.idle)
		gc.idle = nil
	}
	gc.mu.Unlock()
	if ok {
		h.rt.report(leak)
	}
}

// reclaim releases a tensor that was found dead, and reports whether it was still unreleased. It
// fills in the leak first, because a freed block has no label.
func (h *handle) reclaim() (leak Leak, ok bool) {
	if !claim(h) {
		return leak, false
	}
	if h.rt.onLeak != nil {
		leak = Leak{Shape: slices.Clone(h.shape), Dtype: h.dtype, Bytes: h.bytes, Label: h.store.label(), Stack: h.made}
	}
	last, err := h.store.letGo(context.Background())
	h.rt.parked.add(err)
	if last {
		h.rt.gc.mu.Lock()
		h.rt.gc.bytes += h.bytes
		h.rt.gc.mu.Unlock()
	}
	return leak, true
}

func (rt *Runtime) report(leak Leak) {
	if rt.onLeak != nil {
		rt.onLeak(leak)
	}
}
