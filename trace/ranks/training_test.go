package ranks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

// training returns random profiles by rank and step, and the time of each operation by rank.
func training(random *rand.Rand, n, steps int) (profiles [][]trace.StepProfile, times [][]time.Duration) {
	profiles = make([][]trace.StepProfile, n)
	number := int64(0)
	for k := range steps {
		step := make([]trace.StepProfile, n)
		for r := range n {
			step[r] = trace.StepProfile{
				Step: int64(k + 1), Rank: r, WorldSize: n, Communicator: "c", HostTime: time.Duration(random.Int64N(1e9)),
				AllocatedPeak: random.Int64N(1 << 30), ReservedPeak: 1 << 31,
				ReplayedCollectives: []trace.ReplayedCollective{
					{Operation: "all_reduce", Count: int64(r + 1), Bytes: 10}, {Operation: "broadcast", Count: 2, Bytes: int64(k)},
				},
				Peak: &trace.StepPeak{Categories: []memcache.Share{{Name: "activation", Bytes: int64(k)*100 + int64(r)}}},
			}
		}
		for range random.IntN(4) {
			number++
			row := make([]time.Duration, n)
			for r := range n {
				row[r] = time.Duration(random.Int64N(1e6))
				step[r].Collectives = append(step[r].Collectives,
					trace.StepCollective{Number: number, Operation: "all_reduce", Bytes: 10, Time: row[r]},
					trace.StepCollective{Operation: "send", Bytes: 1, Time: 7})
			}
			times = append(times, row)
		}
		for r := range n {
			profiles[r] = append(profiles[r], step[r])
		}
	}
	return profiles, times
}

// filesOf returns a file for each list of profiles.
func filesOf(t *testing.T, profiles [][]trace.StepProfile) (files []File) {
	t.Helper()
	for r, list := range profiles {
		var text bytes.Buffer
		for _, p := range list {
			require.NoError(t, json.NewEncoder(&text).Encode(p))
		}
		files = append(files, File{fmt.Sprintf("rank-%d.jsonl", r), &text})
	}
	return files
}

// read reads the profiles from files, a file for each list.
func read(t *testing.T, profiles [][]trace.StepProfile) *Report {
	t.Helper()
	r, err := Read(Options{}, filesOf(t, profiles)...)
	require.NoError(t, err)
	return r
}

// dense returns the waiting by rank and by the rank that came last.
func dense(r *Report) [][]time.Duration {
	rows := make([][]time.Duration, r.WorldSize)
	for rank := range rows {
		rows[rank] = make([]time.Duration, r.WorldSize)
		for last, column := range r.Waited {
			rows[rank][last] = column[rank]
		}
	}
	return rows
}
