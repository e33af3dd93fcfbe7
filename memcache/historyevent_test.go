package memcache

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// TestEventsAreEntries: the compact form of an event has all fields of the entry.
func TestEventsAreEntries(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		want := HistoryEntry{
			Action: allActions[r.IntN(len(allActions))], Address: device.Ptr(r.Uint64()), Size: r.Int64(), Block: r.Int64(), Stream: r.Uint64(), Serial: r.Uint64(),
			Time: time.Unix(0, r.Int64()), Label: Label{Module: "m", Category: Category(r.UintN(7)), Step: r.Int64(), Tags: "a=b"},
			Grew: r.IntN(2) == 0, AtOnce: r.IntN(2) == 0, Pool: PoolID{r.Uint64(), r.Uint64()},
		}
		for range r.IntN(mostFrames + 1) {
			want.Stack = append(want.Stack, uintptr(r.Uint64()))
		}
		e := event(want.Action)
		e.address, e.size, e.block, e.stream, e.serial, e.label = want.Address, want.Size, want.Block, want.Stream, want.Serial, &want.Label
		e.grew, e.atOnce, e.pool = want.Grew, want.AtOnce, &placement.Pool{ID: want.Pool}
		e.setStack(want.Stack)
		if want.Action == ActionOOM {
			want.Free, want.Block = want.Block, 0
		}
		require.Equal(t, want, e.entry(want.Time))
	}
}

// TestStacksOfTheRingAlone: a stream without stacks gets none, even beside a ring with stacks.
func TestStacksOfTheRingAlone(t *testing.T) {
	c, dev := newCache(t, Config{})
	stream, err := c.StreamHistory(HistoryOptions{})
	require.NoError(t, err)
	require.NoError(t, c.RecordHistory(HistoryOptions{Entries: 10, Stacks: StacksAll}))
	require.NoError(t, mustAlloc(t, c, 100, dev.stream(1)).Free())
	require.NotEmpty(t, c.History()[0].Stack)
	events, err := stream.Next(0)
	require.NoError(t, err)
	require.NotEmpty(t, events)
	for _, e := range events {
		require.Empty(t, e.Stack)
	}
	stream.Close()
}
