package record

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
)

// TestRecordingOfOneGoroutine: a recording of one goroutine verifies call by call, to the last statistic and block.
func TestRecordingOfOneGoroutine(t *testing.T) {
	for name, config := range configs {
		for _, capacity := range []int64{1 << 30, 400 << 20} {
			t.Run(fmt.Sprint(name, capacity>>20), func(t *testing.T) {
				t.Parallel()
				seeds := uint64(6)
				if race.Enabled || testing.Short() {
					seeds = 2
				}
				for seed := range seeds {
					p := program{null: true, config: config, capacity: capacity, streams: 3, goroutines: 1, steps: 800, largest: 25.5, closes: seed%2 == 1}
					if seed == 0 { // on streams that run
						p.null, p.capacity, p.largest, p.steps = false, capacity/4, 23, 1200
					}
					p.steps = shorter(p.steps)
					if seed%2 == 1 {
						p.taken = capacity / 4 * 3
					}
					r := newRig(t, p)
					var file bytes.Buffer
					rec, err := Start(&file, r.cache, Options{Gzip: seed == 1, Stacks: memcache.StacksAll})
					require.NoError(t, err)
					r.run(seed)
					require.NoError(t, rec.Close())
					require.Empty(t, verifies(t, file.Bytes()), "seed %d", seed)
				}
			})
		}
	}
}

// TestRecordingOfReuseAcrossStreams: its entries are consistent, and the reason why the calls are
// not repeated is reported, even if the option was set later.
func TestRecordingOfReuseAcrossStreams(t *testing.T) {
	for seed, config := range []memcache.Config{
		{ReuseAcrossStreams: memcache.ReuseWhenFull, MemoryLimit: 300 << 20}, {ReuseAcrossStreams: memcache.ReuseBeforeGrowth}, {},
	} {
		r := newRig(t, program{null: true, config: config, capacity: 400 << 20, streams: 3, goroutines: 1, steps: 800, largest: 25.5})
		var file bytes.Buffer
		rec, err := Start(&file, r.cache, Options{})
		require.NoError(t, err)
		if config.ReuseAcrossStreams == memcache.ReuseNever {
			require.NoError(t, r.cache.SetConfig(t.Context(), memcache.Config{ReuseAcrossStreams: memcache.ReuseBeforeGrowth}))
		}
		r.run(uint64(seed))
		require.Positive(t, r.cache.Stats().NumStreamReuses)
		require.NoError(t, rec.Close())
		require.Equal(t, "requests were served from memory that other streams still used", verifies(t, file.Bytes()))
	}
}

// TestRecordingOfChanges: changes in the middle are in the recording: limits, which a replay
// follows, and operations on private pools and failures, which it does not; and the cache may be
// closed before the recorder.
func TestRecordingOfChanges(t *testing.T) {
	for name, config := range map[string]memcache.Config{
		"default": {}, "fraction": {PerProcessMemoryFraction: 0.25}, "none": {PerProcessMemoryFraction: 0.25}, "limit": {MemoryLimit: 100 << 20},
		"gc": {Exact: true, PerProcessMemoryFraction: 0.75, GarbageCollectionThreshold: 0.6}, "expandable": {ExpandableSegments: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(8) {
				r := newRig(t, program{null: true, config: config, capacity: 400 << 20, streams: 3,
					goroutines: 1, steps: shorter(400), largest: 25, closes: seed%2 == 1,
					fractions: seed&1 == 0, options: seed&3 < 2, pools: seed&3 == 2, fails: seed&3 == 3})
				switch name {
				case "none":
					require.NoError(t, r.cache.SetMemoryFraction(1))
				case "gc":
					require.NoError(t, r.cache.SetMemoryFraction(0))
				}
				var file bytes.Buffer
				rec, err := Start(&file, r.cache, Options{})
				require.NoError(t, err)
				r.run(seed)
				if seed < 6 {
					r.letAllGo()
					_ = r.cache.Close()
				}
				require.NoError(t, rec.Close())
				jumbled := verifies(t, file.Bytes())
				switch {
				case r.pools:
					require.Equal(t, "some of it is of private pools", jumbled, "seed %d", seed)
				case !r.fails:
					require.Empty(t, jumbled, "seed %d", seed)
				}
			}
		})
	}
}

// TestRecordingOfManyGoroutines: in whatever order several goroutines call, the recording has a
// consistent order: its sums agree with the statistics and blocks at the end.
func TestRecordingOfManyGoroutines(t *testing.T) {
	for name, config := range configs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(3) {
				r := newRig(t, program{null: seed > 0, config: config, capacity: 200 << 20,
					streams: 4, goroutines: 6, steps: shorter(300), largest: 22.5, closes: seed == 1})
				var file bytes.Buffer
				rec, err := Start(&file, r.cache, Options{Stacks: memcache.Stacks(seed + 1)})
				require.NoError(t, err)
				r.run(seed)
				require.NoError(t, rec.Close())
				t.Log(verifies(t, file.Bytes()))
			}
		})
	}
}
