package report

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
)

// TestWhatIfOfHistory: the recorded options, replayed from a cache's history, cost what the cache's
// statistics report: with calls of EmptyCache, and with requests that had to release memory.
func TestWhatIfOfHistory(t *testing.T) {
	const most = 96 << 20
	for i, config := range []memcache.Config{{}, {Exact: true}, {ExpandableSegments: true}, {MaxSplitSizeMB: 32}, {MemoryLimit: most}} {
		seeds := 4
		if testing.Short() {
			seeds = 2 // with one stream, and with two
		}
		for seed := range seeds {
			t.Run(name(seed), func(t *testing.T) { // which frees the memory of its ledger
				l := newLedger(t, config, 1+seed%3, everything)
				l.silent = true
				l.random(newRand(uint64(100*i+seed)), 6)
				if config.MemoryLimit == 0 {
					require.NoError(t, l.cache.EmptyCache(t.Context()))
				} else {
					_, err := l.cache.Alloc(t.Context(), most, l.streams[0])
					require.ErrorIs(t, err, memcache.ErrOutOfMemory)
				}
				l.random(newRand(uint64(100*i+seed+50)), 6)
				r := l.report(Options{Suggest: true})
				require.Empty(t, r.account.notes)
				require.GreaterOrEqual(t, len(r.whatIf), 8, "what comes to the same is tried once")
				got, stats := r.whatIf[0], l.cache.Stats()
				require.True(t, got.Recorded)
				require.Equal(t, []int64{stats.AllocatedBytes.All.Peak, stats.ReservedBytes.All.Peak, stats.NumDeviceAlloc + stats.NumDeviceFree, stats.NumAllocRetries, stats.NumOOMs},
					[]int64{got.Allocated, got.Reserved, got.DriverCalls, got.Retries, got.OOMs}, "%v", config)
				for _, e := range r.whatIf {
					require.Empty(t, e.Error)
				}
			})
		}
	}
}

// TestWhatIfOfLateHistory: an incomplete history is not replayed, and the page has the reason.
func TestWhatIfOfLateHistory(t *testing.T) {
	for want, program := range map[string]func(l *ledger){
		"there is no history": func(l *ledger) { require.NoError(t, l.cache.RecordHistory(memcache.HistoryOptions{})) },
		"memory was in use before the first entry": func(l *ledger) {
			l.alloc(memcache.Label{}, 3<<20, 0)
			require.NoError(t, l.cache.RecordHistory(everything))
			l.free(l.alloc(memcache.Label{}, 1<<20, 0))
		},
		"the history does not contain the peak": func(l *ledger) {
			l.free(l.alloc(memcache.Label{}, 30<<20, 0))
			require.NoError(t, l.cache.EmptyCache(t.Context()))
			require.NoError(t, l.cache.RecordHistory(everything))
			l.free(l.alloc(memcache.Label{}, 1<<20, 0))
		},
		"a replay of the history does not reproduce its figures": func(l *ledger) { // the limit that refused is gone
			l.alloc(memcache.Label{}, 30<<20, 0)
			require.NoError(t, l.cache.SetMemoryFraction(0.2))
			_, err := l.cache.Alloc(t.Context(), 100<<20, l.streams[0])
			require.ErrorIs(t, err, memcache.ErrOutOfMemory)
			require.NoError(t, l.cache.SetMemoryFraction(1))
		},
	} {
		l := newLedger(t, memcache.Config{}, 1, everything)
		program(l)
		r := l.report(Options{Suggest: true})
		require.Empty(t, r.whatIf, want)
		require.Contains(t, strings.Join(r.account.notes, "\n"), want)
	}
}
