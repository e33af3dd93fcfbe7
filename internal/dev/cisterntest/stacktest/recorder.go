package stacktest

import (
	"context"
	"sync"

	"github.com/cistern-ml/cistern/transfer"
)

// Recorder observes a pool and keeps all reports. It panics if an operation ends as another kind.
type Recorder struct {
	mu    sync.Mutex
	infos []transfer.OpInfo
	open  int
}

// Start counts an operation, unless its context is one of [Unobserved].
func (r *Recorder) Start(ctx context.Context, op transfer.Op) (context.Context, transfer.Operation) {
	if ctx.Value(unobserved{}) != nil {
		return ctx, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open++
	return ctx, &operation{r, op}
}

type operation struct {
	r  *Recorder
	op transfer.Op
}

func (o *operation) End(e transfer.OpInfo) {
	if e.Op != o.op {
		panic("an operation ended with another's event")
	}
	o.r.mu.Lock()
	defer o.r.mu.Unlock()
	o.r.open--
	o.r.infos = append(o.r.infos, e)
}

// Of returns the reports of ended operations of a kind, in the order of their ends.
func (r *Recorder) Of(op transfer.Op) (infos []transfer.OpInfo) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.infos {
		if e.Op == op {
			infos = append(infos, e)
		}
	}
	return infos
}

// Open returns the number of operations that have not ended.
func (r *Recorder) Open() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open
}

type unobserved struct{}

// Unobserved returns a context whose operations a Recorder declines.
func Unobserved(ctx context.Context) context.Context {
	return context.WithValue(ctx, unobserved{}, true)
}
