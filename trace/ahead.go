package trace

import (
	"context"
	"sync"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/transfer"
)

// aheadOperation is a copy that is queued before its use, such as a loader's. It is observed in the
// context of the use. Its span is thus in the trace of the step that uses the copy, and begins when
// the copy was queued.
type aheadOperation struct {
	mu          sync.Mutex // not held while a span is made
	used, ended bool
	run         transfer.Operation // if used; nil: it is not observed there
	info        transfer.OpInfo    // if ended
}

// startAhead starts an operation that waits for its use.
func (o transferObserver) startAhead(a *transfer.Ahead, op transfer.Op) *aheadOperation {
	x, queued := &aheadOperation{}, time.Now()
	a.OnUse(func(ctx context.Context) {
		_, run := o.begin(ctx, op, oteltrace.WithTimestamp(queued))
		x.mu.Lock()
		x.used, x.run = true, run
		ended, info := x.ended, x.info
		x.mu.Unlock()
		if ended && run != nil {
			run.End(info)
		}
	})
	return x
}

// End ends the copy, or keeps its end until the use.
func (x *aheadOperation) End(e transfer.OpInfo) {
	x.mu.Lock()
	x.ended, x.info = true, e
	used, run := x.used, x.run
	x.mu.Unlock()
	if used && run != nil {
		run.End(e)
	}
}
