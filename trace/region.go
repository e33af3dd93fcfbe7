package trace

import (
	"context"
	rtrace "runtime/trace"

	"github.com/cistern-ml/cistern/internal/opened"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// goTask is a step's task of Go's execution tracer; zero if that does not run. The ledger is open
// as long as the task is, so that tests can find a task that was not ended, which they can't read
// in an execution trace.
type goTask struct {
	*rtrace.Task
	opened *opened.Ledger
}

func (t goTask) End() {
	t.Task.End()
	t.opened.Close(false)
}

// Go's execution tracer ("go tool trace") shows why goroutines wait, and the garbage collector
// beside them. While it runs, steps are its tasks. Operations that block a goroutine are regions
// with the names of the spans, whether spans are made or not.

// region starts a region, or returns nil if Go's tracer does not run. The region must end on the
// same goroutine.
func region(ctx context.Context, name string) *rtrace.Region {
	if ctx == nil || !rtrace.IsEnabled() {
		return nil
	}
	return rtrace.StartRegion(ctx, name)
}

// memoryRegion ends a region together with an operation of a cache.
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

// transferRegion ends a region together with an operation of a pool.
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
