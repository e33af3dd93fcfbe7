package trace

import (
	"context"
	rtrace "runtime/trace"

	"github.com/cistern-ml/cistern/internal/opened"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// goTask is a step's task of Go's tracer; zero if that does not run. No test can read in an
// execution trace which tasks have ended: the ledger is open as long as the task is.
type goTask struct {
	*rtrace.Task
	opened *opened.Ledger
}

func (t goTask) End() {
	t.Task.End()
	t.opened.Close(false)
}

// Go's own execution tracer ("go tool trace") shows what goroutines wait for, and GC beside it. While it runs, steps are
// tasks of it, and what makes a goroutine wait is a region, with the names of the spans; whether there are spans or not.

// region starts a region, if Go's tracer runs; else it is nil. It must end on the same goroutine.
func region(ctx context.Context, name string) *rtrace.Region {
	if ctx == nil || !rtrace.IsEnabled() {
		return nil
	}
	return rtrace.StartRegion(ctx, name)
}

// memoryRegion ends a region with an operation of a cache.
type memoryRegion struct {
	region *rtrace.Region
	inner  memcache.Operation // nil: none
}

func (r memoryRegion) End(e memcache.OpInfo) {
	if r.inner != nil {
		r.inner.End(e)
	}
	r.region.End()
}

// transferRegion ends a region with an operation of a pool.
type transferRegion struct {
	region *rtrace.Region
	inner  transfer.Operation // nil: none
}

func (r transferRegion) End(e transfer.OpInfo) {
	if r.inner != nil {
		r.inner.End(e)
	}
	r.region.End()
}
