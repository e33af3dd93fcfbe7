package ranks

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/trace"
)

// operation identifies an operation of all ranks.
type operation struct {
	communicator string
	number       int64
}

// reference computes a report's waiting with a full row of times for each operation.
func reference(n int, profiles []trace.StepProfile) *Report {
	type row struct {
		step     int64
		times    []time.Duration
		reported []bool
	}
	r := newReport(n)
	waited := map[[2]any]time.Duration{} // by communicator and step
	open := map[operation]*row{}
	for _, p := range profiles {
		for _, x := range p.Collectives {
			op := operation{p.Communicator, x.Number}
			if x.Number == 0 {
				continue
			}
			if open[op] == nil {
				open[op] = &row{step: p.Step, times: make([]time.Duration, n), reported: make([]bool, n)}
			}
			o := open[op]
			if o.reported[p.Rank] {
				continue
			}
			o.times[p.Rank], o.reported[p.Rank] = x.Time, true
			if slices.Contains(o.reported, false) {
				continue
			}
			delete(open, op)
			r.Matched++
			sorted := slices.Sorted(slices.Values(o.times))
			last := slices.Index(o.times, sorted[0])
			if r.Waited[last] == nil {
				r.Waited[last] = make([]time.Duration, n)
			}
			for rank, d := range o.times {
				r.Waited[last][rank] += d - sorted[0]
				r.Ranks[rank].Waited += d - sorted[0]
				r.Ranks[last].WaitedFor += d - sorted[0]
				waited[[2]any{p.Communicator, o.step}] += d - sorted[0]
			}
			r.Ranks[last].Last++
			if n > 1 {
				r.Ranks[last].HeldUp += sorted[1] - sorted[0]
			}
		}
	}
	r.Unmatched = int64(len(open))
	straggler := slices.MaxFunc(r.Ranks, func(x, y Rank) int { return cmp.Compare(x.HeldUp, y.HeldUp) })
	if straggler.HeldUp > 0 {
		r.Straggler = slices.IndexFunc(r.Ranks, func(x Rank) bool { return x.HeldUp == straggler.HeldUp })
	}
	for key, d := range waited {
		if d > 0 {
			r.Waits = append(r.Waits, Wait{key[1].(int64), d})
		}
	}
	slices.SortFunc(r.Waits, func(x, y Wait) int { return cmp.Or(cmp.Compare(y.Waited, x.Waited), cmp.Compare(x.Step, y.Step)) })
	r.Waits = r.Waits[:min(len(r.Waits), 20)]
	return r
}

// shapes returns random files: ranks lack operations, repeat them, and report equal times; files
// are of several ranks, are read twice, and end early.
func shapes(random *rand.Rand, n int) (files [][]trace.StepProfile) {
	files = make([][]trace.StepProfile, n)
	for c := range 1 + random.IntN(3) {
		number := int64(0)
		for step := range random.IntN(30) {
			first := number
			number += random.Int64N(4)
			for rank := range n {
				p := trace.StepProfile{Step: int64(step), Rank: rank, WorldSize: n, Communicator: fmt.Sprint(c)}
				for x := first + 1; x <= number; x++ {
					for range []int{0, 2, 1, 1, 1, 1, 1, 1, 1, 1}[random.IntN(10)] {
						p.Collectives = append(p.Collectives, trace.StepCollective{Number: x, Time: time.Duration(random.IntN(5))})
					}
					p.Collectives = append(p.Collectives, trace.StepCollective{Operation: "send", Time: 9})
				}
				if random.IntN(30) > 0 {
					into := rank
					if random.IntN(10) == 0 {
						into = random.IntN(n)
					}
					files[into] = append(files[into], p)
				}
			}
		}
	}
	for i := range files {
		switch random.IntN(8) {
		case 0:
			files = append(files, files[i])
		case 1:
			files[i] = files[i][:random.IntN(len(files[i])+1)]
		}
	}
	random.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	return files
}

// TestParallelReportAgreesWithReference: random files give the reference's waiting, by Read and by
// a Merger.
func TestParallelReportAgreesWithReference(t *testing.T) {
	matched, unmatched := int64(0), int64(0)
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 7))
		n := 1 + random.IntN(8)
		files := shapes(random, n)
		var order []trace.StepProfile // a line of each file in turn
		for k := range 90 {           // lines of a file, at most
			for _, f := range files {
				if k < len(f) {
					order = append(order, f[k])
				}
			}
		}
		if len(order) == 0 {
			continue
		}
		want := reference(n, order)
		var m Merger
		for _, p := range order {
			require.NoError(t, m.Add(p))
		}
		direct, err := m.Report()
		require.NoError(t, err)
		r := read(t, files)
		require.Equal(t, r, direct, "seed %d", seed)
		for rank, x := range r.Ranks {
			want.Ranks[rank] = Rank{Waited: want.Ranks[rank].Waited, WaitedFor: want.Ranks[rank].WaitedFor,
				Last: want.Ranks[rank].Last, HeldUp: want.Ranks[rank].HeldUp}
			r.Ranks[rank] = Rank{Waited: x.Waited, WaitedFor: x.WaitedFor, Last: x.Last, HeldUp: x.HeldUp}
		}
		r.Notes = nil
		require.Equal(t, want, r, "seed %d", seed)
		matched += r.Matched
		unmatched += r.Unmatched
	}
	require.Greater(t, matched, int64(1000))
	require.Greater(t, unmatched, int64(1000))
}
