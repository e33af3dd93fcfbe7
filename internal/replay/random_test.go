package replay

import (
	"flag"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/internal/recording"
)

var long = flag.Bool("long", false, "more and longer recordings of random callers")

// impatient shortens searches, for the test's time.
func impatient(t testing.TB, steps int) {
	before := patience
	patience = steps
	t.Cleanup(func() { patience = before })
}

// workloads are callers of kinds that no available recording has.
func workloads() map[string]workload {
	confs := map[string]string{
		"default": "", "maxsplit": "max_split_size_mb:20", "gc": "garbage_collection_threshold:0.5",
		"both": "max_split_size_mb:32,garbage_collection_threshold:0.7", "divisions": "roundup_power2_divisions:[1:2,8:4,>:8]",
		"expandable": "expandable_segments:True", "segment": "large_segment_size_mb:30,max_split_size_mb:40",
	}
	m := map[string]workload{}
	for name, conf := range confs {
		m[name+"/free"] = workload{conf: conf, capacity: 1 << 36, sides: 3, steps: 1500, largest: 26, empty: 0.003}
		m[name+"/limit"] = workload{conf: conf, capacity: 1 << 36, limit: 400 << 20, sides: 4, steps: 1500, largest: 26}
		m[name+"/limit and empty_cache"] = workload{conf: conf, capacity: 1 << 36, limit: 300<<20 + 12345, sides: 3, steps: 1500, largest: 27, empty: 0.01}
		m[name+"/full"] = workload{conf: conf, capacity: 400 << 20, sides: 2, steps: 1000, largest: 26}
	}
	return m
}

// TestRandomRecordings verifies recordings of random callers under every kind of option, with and
// without the data that a snapshot lacks: the limit and the statistics.
func TestRandomRecordings(t *testing.T) {
	t.Parallel()
	for name, w := range workloads() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seeds := uint64(1)
			switch {
			case *long:
				seeds = 8
			case race.Enabled: // one goroutine
				w.steps /= 3
			case testing.Short() && !strings.HasSuffix(name, "/full"):
				w.steps /= 5 // those on a full device are short, and keep their steps
			default:
				w.steps /= 2
			}
			for seed := range seeds {
				rec := record(t, seed, w)
				verifies(t, rec)
				rec.LimitKnown, rec.Limit = false, 0
				if seed%2 == 0 {
					rec.Stats = nil
				}
				verifies(t, rec)
			}
		})
	}
}

// TestLongRecordings: most readings are correct at once, however many there are. A search of a few
// replays is enough. The short form has the two workloads that take paths of the search which
// TestRandomRecordings does not take; the other workloads repeat that test at length.
func TestLongRecordings(t *testing.T) {
	if race.Enabled || invariants.Enabled {
		t.Skip("one goroutine, and long")
	}
	impatient(t, 1)
	for name, w := range workloads() {
		if testing.Short() && name != "gc/free" && name != "maxsplit/limit and empty_cache" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w.steps = 1500
			if *long {
				w.steps = 8000
			}
			if strings.HasPrefix(name, "expandable") {
				w.steps *= 2
			}
			rec := record(t, 100, w)
			verifies(t, rec)
			rec.LimitKnown, rec.Limit = false, 0
			verifies(t, rec)
		})
	}
}

func verifies(t *testing.T, rec recording.Recording) {
	t.Helper()
	rec.Entries = slices.Clone(rec.Entries)
	p, err := recording.NewProgram(&rec)
	require.NoError(t, err)
	v, err := Verify(p)
	require.NoError(t, err)
	require.Zero(t, v.Mismatches(), "%d retries, %d ooms: %+v", rec.Stats["num_alloc_retries"], rec.Stats["num_ooms"], v)
}

// TestDepartures: a recording with any change does not verify.
func TestDepartures(t *testing.T) {
	impatient(t, 100_000)
	for name, change := range map[string]func(*recording.Recording){
		"an address": func(rec *recording.Recording) {
			i := slices.IndexFunc(rec.Entries, func(e recording.Entry) bool { return e.Action == recording.FreeRequested })
			at, from := rec.Entries[i].Addr, -1
			for k, e := range rec.Entries[:i+2] {
				if e.Addr == at && e.Action == recording.Alloc {
					from = k
				}
			}
			for k := from; k < i+2; k++ {
				if e := &rec.Entries[k]; e.Addr == at && !e.Action.Driver() {
					e.Addr += 512
				}
			}
		},
		"the order of driver calls": func(rec *recording.Recording) {
			for i := range rec.Entries {
				if a, b := &rec.Entries[i], &rec.Entries[i+1]; a.Action == recording.SegmentFree && b.Action == a.Action {
					*a, *b = *b, *a
					return
				}
			}
		},
		"a driver call less": func(rec *recording.Recording) {
			i := slices.IndexFunc(rec.Entries, func(e recording.Entry) bool { return e.Action == recording.SegmentFree })
			rec.Entries = slices.Delete(rec.Entries, i, i+1)
		},
		"an oom less": func(rec *recording.Recording) {
			i := slices.IndexFunc(rec.Entries, func(e recording.Entry) bool { return e.Action == recording.OOM })
			rec.Entries = slices.Delete(rec.Entries, i, i+1)
		},
		"a statistic":  func(rec *recording.Recording) { rec.Stats["inactive_split_bytes.large_pool.peak"] += 512 },
		"a stale size": func(rec *recording.Recording) { rec.Segments[0].Blocks[0].Requested++ },
		"a segment":    func(rec *recording.Recording) { rec.Segments = rec.Segments[1:] },
		"the stream":   func(rec *recording.Recording) { rec.Segments[0].Stream++ },
		"the pool of a segment": func(rec *recording.Recording) {
			rec.Calls, rec.Pools, rec.Segments[0].Pool = true, map[uint64][2]uint64{1: {0, 1}}, 1
		},
		"a smaller limit": func(rec *recording.Recording) { rec.Limit -= 100 << 20 },
		"the options":     func(rec *recording.Recording) { rec.Conf = "max_split_size_mb:25" },
	} {
		t.Run(name, func(t *testing.T) {
			rec := record(t, 3, workload{capacity: 1 << 36, limit: 400 << 20, sides: 3, steps: 600, largest: 26})
			verifies(t, rec)
			change(&rec)
			p, err := recording.NewProgram(&rec)
			if err != nil {
				return // it contradicts itself
			}
			v, err := Verify(p)
			require.NoError(t, err)
			require.Positive(t, v.Mismatches())
			require.NotEmpty(t, v.First)
		})
	}
}
