package trace

import (
	"context"
	"sync/atomic"
	"time"
)

// dataWait sums up the time that a step waited in a loader's Next for data.
type dataWait struct{ nexts, nanoseconds atomic.Int64 }

// stepThatWaits returns the innermost open step of ctx, nil if there is none or no reader uses its
// wait time.
func (t *Tracer) stepThatWaits(ctx context.Context) *Step {
	if ctx == nil || !t.stepMetrics.dataWait.Enabled(ctx) {
		return nil
	}
	_, s := inside(ctx)
	return s
}

// waitedForData counts a Next in s and in the steps around it, if they are open and of t.
func (s *Step) waitedForData(t *Tracer, waited time.Duration) {
	for ; s != nil; s = s.outer {
		if s.profiler.config.Tracer == t && !s.over.Load() {
			s.waited.nexts.Add(1)
			s.waited.nanoseconds.Add(int64(waited))
		}
	}
}
