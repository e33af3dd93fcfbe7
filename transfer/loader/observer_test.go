package loader_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/transfer"
)

// recorder keeps what an observer of the pool is told.
type recorder struct {
	mu    sync.Mutex
	infos []transfer.OpInfo
	open  int
}

type operation struct {
	r  *recorder
	op transfer.Op
}

func (r *recorder) Start(ctx context.Context, op transfer.Op) (context.Context, transfer.Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open++
	return ctx, &operation{r, op}
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

func (r *recorder) of(op transfer.Op) (infos []transfer.OpInfo) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.infos {
		if e.Op == op {
			infos = append(infos, e)
		}
	}
	return infos
}

// deaf is an observer that observes nothing.
type deaf struct{}

func (deaf) Start(ctx context.Context, _ transfer.Op) (context.Context, transfer.Operation) {
	return ctx, nil
}

func TestObserverThatDeclines(t *testing.T) {
	r := newRig(t, transfer.Config{Observer: deaf{}})
	k := newSink(t, r, 3)
	l := newLoader(t, r, 2)
	k.epoch(l, 3, nil, false)
	require.NoError(t, l.Close())
}

func TestObserverOfLoader(t *testing.T) {
	rec := &recorder{}
	r := newRig(t, transfer.Config{Observer: rec})
	k := newSink(t, r, 20)
	l := newLoader(t, r, 2)
	k.epoch(l, 20, nil, false)
	require.NoError(t, l.Close())
	require.NoError(t, r.pool.Close())
	require.Zero(t, rec.open)
	nexts := rec.of(transfer.OpNext)
	require.Len(t, nexts, 22)
	for i, e := range nexts {
		require.NoError(t, e.Err)
		if i < 19 {
			require.EqualValues(t, imageBytes+labelBytes, e.Bytes)
		}
	}
	require.Len(t, rec.of(transfer.OpH2D), 40)
}
