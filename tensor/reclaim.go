package tensor

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
)

// A tensor that nobody released is found in two ways. Go's collector runs its cleanup (died) some time after it became
// unreachable, which costs nothing until then. That may be long after an allocation has failed: the collector does not
// know that a handle of a few hundred bytes holds gigabytes of a GPU. So the cache asks before it gives up (reclaim), and then
// a collection is run and the weak pointers of all live tensors are looked at, which says at once what cleanups say later.
// A collection stops nothing for long but takes a processor for as long as the Go heap is large: at most one a second.
// Whichever way comes first frees the memory, by the handle's released flag.

// reclaimer finds tensors that nobody can release any more. Its lock is never held while memory is freed.
type reclaimer struct {
	mu      sync.Mutex
	bytes   int64         // freed because a tensor was found dead, since the cache last asked
	dying   int           // cleanups that are at it
	idle    chan struct{} // closed when dying becomes 0, if somebody waits for that
	running *collection   // the one that goes on, or nil
	last    time.Time     // when the last one ended
}

// collection is a garbage collection for the sake of memory. freed is set when done is closed.
type collection struct {
	done  chan struct{}
	freed int64
}

// reclaimInterval is the least time between two of them.
const reclaimInterval = time.Second

// reclaim is called when the cache has run out of memory: it collects garbage and frees the memory of
// unreleased tensors that turn out to be unreachable. Whoever comes while it goes on shares its result.
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
		freed, gc.bytes = gc.bytes, 0 // by cleanups, perhaps a moment too late for the allocation
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

// collectGarbage does not rely on cleanups, which run some time later: a weak pointer is nil as soon as the
// collection has ended.
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

// awaitCleanups waits for the cleanups that are at it.
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

// died runs on a goroutine of the garbage collector's when a tensor was found dead.
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

// reclaim releases a tensor that was found dead and reports whether nobody else had. What is to be told of it is read
// before: a block that was freed has no label.
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
