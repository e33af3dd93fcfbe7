package host

import (
	"context"
	"runtime"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// The scenarios run in a certain order without an edge between their goroutines.

// quiet is a flag that the race detector does not see.
type quiet struct{ flag atomic.Bool }

//go:norace
func (q *quiet) set() {
	race.Disable()
	q.flag.Store(true)
	race.Enable()
}

//go:norace
func (q *quiet) wait() {
	race.Disable()
	for !q.flag.Load() {
		runtime.Gosched()
	}
	race.Enable()
}

// drain waits until s is idle.
//
//go:norace
func drain(s *stream) {
	race.Disable()
	for idle := false; !idle; runtime.Gosched() {
		s.queue.mu.Lock()
		idle = s.queue.done.Load() == s.queue.queued
		s.queue.mu.Unlock()
	}
	race.Enable()
}

// waitedFor waits until some goroutine waits for r.
//
//go:norace
func waitedFor(r *record) {
	race.Disable()
	for waited := false; !waited; runtime.Gosched() {
		r.mu.Lock()
		waited = r.wake != nil
		r.mu.Unlock()
	}
	race.Enable()
}

// everyCall makes calls that share state with calls of other goroutines, but don't order them. None
// fails, because package fmt would add edges by a sync.Pool.
func (x *bench) everyCall() {
	s, e := must1(x.dev.NewStream(device.StreamOptions{})), must1(x.dev.NewEvent(device.EventOptions{}))
	must(x.a.Memset(x.noise[0], 1, 8))
	must(x.b.Memset(x.noise[1], 1, 8))
	for _, t := range []device.Stream{x.a, x.b, s} {
		must(t.Launch(&device.Launch{Func: func() {}}))
		must(t.OnDone(func(error) {}))
		must(t.Wait(x.early))
	}
	must(s.Record(e))
	must(s.Record(x.again))
	must(x.dev.Free(must1(x.dev.Alloc(100))))
	must(x.dev.FreePinned(must1(x.dev.AllocPinned(100))))
	p := must1(x.dev.Reserve(granularity))
	must(x.dev.Map(p, granularity))
	must(x.dev.Unmap(p, granularity))
	must(x.dev.Unreserve(p))
	x.dev.Fail(FaultMap, 0)
	_, _, err := x.dev.MemInfo()
	must(err)
	must(s.Synchronize(context.Background()))
	must(e.Close())
	must(s.Close())
}
