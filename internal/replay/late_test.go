package replay

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

// TestFreeThatTheNextCallWaitedFor: a free whose completion comes right after it looks complete at once. If the next
// call's flush waited for it, that call must not find its block before.
func TestFreeThatTheNextCallWaitedFor(t *testing.T) {
	w := workload{capacity: 1 << 36, limit: 64 << 20}
	dev, err := null.New(null.Config{Capacity: w.capacity})
	require.NoError(t, err)
	cache, err := memcache.New(dev, memcache.Config{Exact: true, MemoryLimit: w.limit})
	require.NoError(t, err)
	require.NoError(t, cache.RecordHistory(memcache.HistoryOptions{Entries: 100}))
	s, err := dev.NewStreamWithID(0)
	require.NoError(t, err)
	heldStream, err := dev.NewStreamWithID(1)
	require.NoError(t, err)
	alloc := func(s device.Stream) memcache.Block {
		b, err := cache.Alloc(context.Background(), 40<<20, s)
		require.NoError(t, err)
		return b
	}
	b := alloc(s)
	release, err := heldStream.Hold()
	require.NoError(t, err)
	dev.SetScript(null.Script{Before: func(c *null.Call) {
		if c.Op == null.OpSynchronize {
			release()
		}
	}})
	require.NoError(t, b.RecordStream(heldStream))
	require.NoError(t, b.Free())
	alloc(s)

	rec := recorded(cache, w)
	var actions []recording.Action
	for _, e := range rec.Entries {
		actions = append(actions, e.Action)
	}
	require.Equal(t, []recording.Action{recording.SegmentAlloc, recording.Alloc, recording.FreeRequested, recording.FreeCompleted,
		recording.SegmentFree, recording.SegmentAlloc, recording.Alloc}, actions)
	verifies(t, rec)
	p, err := recording.NewProgram(&rec)
	require.NoError(t, err)
	scenario, err := NewScenario(p)
	require.NoError(t, err)
	e, err := scenario.Estimate(memcache.Config{Exact: true})
	require.NoError(t, err)
	require.EqualValues(t, 1, e.Retries, "the free is late here too")

	// A flush completes every pending free. A free that stays pending in the recording is a
	// difference of its own.
	rec = recorded(cache, w)
	rec.Entries = slices.Delete(rec.Entries, 3, 4)
	rec.Stats, rec.Segments = nil, nil
	impatient(t, 1000)
	p, err = recording.NewProgram(&rec)
	require.NoError(t, err)
	v, err := Verify(p)
	require.NoError(t, err)
	require.Positive(t, v.CallMismatches)
	require.Contains(t, v.First, "0 frees are pending here, and 1 in the recording")
}

// TestFlushThatReleasedNothing: a free looks complete at once, and the next allocation looks like a
// hit of its block. But the driver had refused to grow the segment, and the flush waited for the
// free: only the counters show that.
func TestFlushThatReleasedNothing(t *testing.T) {
	w := workload{capacity: 20 << 20, conf: "expandable_segments:True"}
	dev, err := null.New(null.Config{Capacity: w.capacity})
	require.NoError(t, err)
	cache, err := memcache.New(dev, memcache.Config{Exact: true, ExpandableSegments: true})
	require.NoError(t, err)
	require.NoError(t, cache.RecordHistory(memcache.HistoryOptions{Entries: 100}))
	s, err := dev.NewStreamWithID(0)
	require.NoError(t, err)
	heldStream, err := dev.NewStreamWithID(1)
	require.NoError(t, err)
	alloc := func(mib int64) memcache.Block {
		b, err := cache.Alloc(context.Background(), mib<<20, s)
		require.NoError(t, err)
		return b
	}
	alloc(4)
	b := alloc(10)
	release, err := heldStream.Hold()
	require.NoError(t, err)
	dev.SetScript(null.Script{Before: func(c *null.Call) {
		if c.Op == null.OpSynchronize {
			release()
		}
	}})
	require.NoError(t, b.RecordStream(heldStream))
	require.NoError(t, b.Free())
	require.Equal(t, b.Ptr(), alloc(12).Ptr())

	rec := recorded(cache, w)
	require.Len(t, rec.Entries, 6)
	require.EqualValues(t, 1, rec.Stats["num_alloc_retries"])
	verifies(t, rec)
}
