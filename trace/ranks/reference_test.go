package ranks

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
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
	type stepRow struct {
		wait  Wait
		held  []time.Duration // by rank
		trace []string        // by rank
	}
	steps := map[string]map[int64]*stepRow{} // by communicator and number
	stepOf := func(communicator string, number int64) *stepRow {
		if steps[communicator] == nil {
			steps[communicator] = map[int64]*stepRow{}
		}
		if steps[communicator][number] == nil {
			steps[communicator][number] = &stepRow{wait: Wait{Step: number}, held: make([]time.Duration, n), trace: make([]string, n)}
		}
		return steps[communicator][number]
	}
	open := map[operation]*row{}
	for _, p := range profiles {
		if len(p.Collectives) > 0 {
			if s := stepOf(p.Communicator, p.Step); s.trace[p.Rank] == "" {
				s.trace[p.Rank] = p.TraceID
			}
		}
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
				stepOf(p.Communicator, o.step).wait.Waited += d - sorted[0]
			}
			r.Ranks[last].Last++
			if n > 1 {
				r.Ranks[last].HeldUp += sorted[1] - sorted[0]
				stepOf(p.Communicator, o.step).held[last] += sorted[1] - sorted[0]
			}
		}
	}
	r.Unmatched = int64(len(open))
	for _, communicator := range slices.Sorted(maps.Keys(steps)) {
		for _, number := range slices.Sorted(maps.Keys(steps[communicator])) {
			s := steps[communicator][number]
			order := make([]int, n)
			for rank := range order {
				order[rank] = rank
			}
			slices.SortFunc(order, func(x, y int) int { return cmp.Compare(s.held[y], s.held[x]) })
			s.wait.Last = -1
			if n > 1 && s.held[order[0]] > s.held[order[1]] {
				s.wait.Last, s.wait.HeldUp = order[0], s.held[order[0]]
				r.Steps++
				r.Ranks[order[0]].LastSteps++
			}
			s.wait.TraceID = strings.TrimSpace(strings.Join(s.trace, " "))
			s.wait.TraceID, _, _ = strings.Cut(s.wait.TraceID, " ")
			if s.wait.Waited > 0 {
				r.Waits = append(r.Waits, s.wait)
			}
		}
	}
	slices.SortStableFunc(r.Waits, func(x, y Wait) int { return cmp.Or(cmp.Compare(y.Waited, x.Waited), cmp.Compare(x.Step, y.Step)) })
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
			shared := random.IntN(2) == 0
			for rank := range n {
				p := trace.StepProfile{Step: int64(step), Rank: rank, WorldSize: n, Communicator: fmt.Sprint(c)}
				switch {
				case shared:
					p.TraceID = fmt.Sprintf("%032x", step+1)
				case random.IntN(3) > 0:
					p.TraceID = fmt.Sprintf("%016x%016x", rank, step+1)
				}
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
	named := map[bool]int{}
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
				Last: want.Ranks[rank].Last, HeldUp: want.Ranks[rank].HeldUp, LastSteps: want.Ranks[rank].LastSteps}
			r.Ranks[rank] = Rank{Waited: x.Waited, WaitedFor: x.WaitedFor, Last: x.Last, HeldUp: x.HeldUp, LastSteps: x.LastSteps}
		}
		named[r.Straggler >= 0]++
		r.Notes, r.Test, r.Straggler = nil, "", -1
		require.Equal(t, want, r, "seed %d", seed)
		matched += r.Matched
		unmatched += r.Unmatched
	}
	require.Greater(t, matched, int64(1000))
	require.Greater(t, unmatched, int64(1000))
	t.Logf("%d worlds of ranks that are alike, %d with a straggler", named[false]+named[true], named[true])
}
