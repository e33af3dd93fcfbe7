//go:build race

package transfer_test

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/child"
	"github.com/cistern-ml/cistern/transfer"
)

// The pool's work between a mistake's two halves must not hide the mistake from the race detector.
// Each of these functions runs after the upload was queued and before the kernel that should have
// waited for it. Most run when the upload is done in real time, but none reports that to the
// caller.
var between = map[string]func(*testing.T, *rig){
	"nothing": func(*testing.T, *rig) {},
	"wait for copies": func(t *testing.T, r *rig) {
		before := r.pool.Stats()
		require.NoError(t, r.pool.EmptyCache(t.Context()))
		require.EqualValues(t, 1, before.Pending, "nothing to wait for")
	},
	"statistics": func(t *testing.T, r *rig) {
		require.Zero(t, r.pool.Stats().Pending)
	},
	"a miss": func(t *testing.T, r *rig) { // polls every copy
		require.NoError(t, r.get(t, 100_000).Release())
	},
	"over the budget": func(t *testing.T, r *rig) {
		b := r.get(t, 300<<20)
		require.NoError(t, b.Release())
		require.Positive(t, r.pool.Stats().HostFrees)
	},
	"empty cache": func(t *testing.T, r *rig) { // waits for every copy
		require.NoError(t, r.pool.EmptyCache(t.Context()))
	},
	"an earlier copy": func(t *testing.T, r *rig) {
		block := r.alloc(t, 100, r.a)
		c, err := r.pool.Upload(t.Context(), r.a, block, 0, make([]byte, 100))
		require.NoError(t, err)
		require.NoError(t, c.Wait(t.Context()))
		require.NoError(t, block.Free())
	},
}

// locker is an observer with a lock that the program also takes.
type locker struct{ mu sync.Mutex }

func (l *locker) Start(ctx context.Context, _ transfer.Op) (context.Context, transfer.Operation) {
	return ctx, l
}

func (l *locker) End(transfer.OpInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
}

// mistake uploads on one stream and reads on another, with or without an event between them.
func mistake(t *testing.T, with, now bool, do func(*testing.T, *rig), ops int) {
	l := &locker{}
	r := newRig(t, transfer.Config{Observer: l})
	r.get(t, 5000).Release()
	block := r.alloc(t, 4096, r.b)
	require.NoError(t, r.b.Launch(&device.Launch{Func: func() { time.Sleep(20 * time.Millisecond) }}))
	_, err := r.pool.Upload(t.Context(), r.b, block, 0, make([]byte, 4096))
	require.NoError(t, err)
	if with {
		e, err := r.dev.NewEvent(device.EventOptions{})
		require.NoError(t, err)
		require.NoError(t, r.b.Record(e))
		require.NoError(t, r.a.Wait(e))
	}
	if !now {
		time.Sleep(40 * time.Millisecond)
	}
	l.mu.Lock() // after the observer's End
	l.mu.Unlock()
	do(t, r)
	require.NoError(t, block.RecordStream(r.a))
	mem, err := r.host(t).Bytes(block.Ptr(), 4096)
	require.NoError(t, err)
	require.NoError(t, r.a.Launch(&device.Launch{Reads: []device.Range{block.Range(0, 4096)}, Func: func() {
		if mem[0] != 0 {
			panic("never")
		}
	}}))
	scratch := r.alloc(t, 100, r.a)
	for range ops {
		for _, s := range []device.Stream{r.a, r.b} {
			_, err := r.pool.Upload(t.Context(), s, scratch, 0, make([]byte, 10))
			require.NoError(t, err)
			require.NoError(t, s.Synchronize(t.Context()))
		}
	}
	require.NoError(t, scratch.Free())
	require.NoError(t, block.Free())
}

// TestMistake runs one mistake or its corrected twin in its own process.
func TestMistake(t *testing.T) {
	name, corrected := child.Mistake(t)
	mistake(t, corrected, name == "wait for copies", between[name], 10)
}

func TestMistakesAreReported(t *testing.T) {
	child.Mistakes(t, "TestMistake", slices.Collect(maps.Keys(between)), 2)
}
