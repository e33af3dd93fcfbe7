package loader_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/transfer"
)

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
	rec := &stacktest.Recorder{}
	r := newRig(t, transfer.Config{Observer: rec})
	k := newSink(t, r, 20)
	l := newLoader(t, r, 2)
	k.epoch(l, 20, nil, false)
	require.NoError(t, l.Close())
	require.NoError(t, r.pool.Close())
	require.Zero(t, rec.Open())
	nexts := rec.Of(transfer.OpNext)
	require.Len(t, nexts, 22)
	var waited time.Duration
	for i, e := range nexts {
		waited += e.Waited
		require.NoError(t, e.Err)
		if i < 19 {
			require.EqualValues(t, imageBytes+labelBytes, e.Bytes)
		}
	}
	require.Equal(t, l.Stats().Waited, waited, "also where the epoch is over")
	require.Len(t, rec.Of(transfer.OpH2D), 40)
}
