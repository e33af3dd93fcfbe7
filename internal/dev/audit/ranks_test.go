package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/ranks"
)

// TestRanks compares the sums, the table and the page of several ranks with the profiles that they
// were made of.
func TestRanks(t *testing.T) {
	const size, steps = 3, 18
	stragglers := 0
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 3))
		var all [size][]trace.StepProfile
		want := figures{"world_size": size, "matched": 2 * steps, "unmatched": 0}
		var waited [size][size]time.Duration // of a rank, for the one that came last
		var last [size]int64
		var heldUp [size]time.Duration
		var lastSteps [size]int64
		late := r.IntN(2 * size) // a rank, or none
		var waits [steps]ranks.Wait
		for n := range int64(steps) {
			var times [2][size]time.Duration
			var heldUpIn [size]time.Duration
			wait := &waits[n]
			wait.Step, wait.TraceID = n+1, fmt.Sprintf("%032x", r.Int64()+1)
			for op := range times {
				for rank := range size {
					times[op][rank] = time.Duration(1e6 + r.Int64N(1e6))
					if rank != late && late < size {
						times[op][rank] += 1e6
					}
				}
				first := 0
				for rank, d := range times[op] {
					if d < times[op][first] {
						first = rank
					}
				}
				last[first]++
				held := time.Hour
				for rank, d := range times[op] {
					waited[rank][first] += d - times[op][first]
					wait.Waited += d - times[op][first]
					if rank != first {
						held = min(held, d-times[op][first])
					}
				}
				heldUp[first] += held
				heldUpIn[first] += held
			}
			for rank, d := range heldUpIn {
				if d > wait.HeldUp {
					wait.Last, wait.HeldUp = rank, d
				}
			}
			lastSteps[wait.Last]++
			for rank := range size {
				p := trace.StepProfile{Step: n + 1, Rank: rank, WorldSize: size, Communicator: "c", TraceID: wait.TraceID, Failed: r.IntN(4) == 0, Start: time.Now(),
					HostTime: time.Duration(r.Int64N(1e8)), DeviceTime: time.Duration(r.Int64N(2e8)), DeviceTimed: r.IntN(3) > 0,
					AllocatedPeak: r.Int64N(1 << 34), ReservedPeak: r.Int64N(1 << 35)}
				p.Peak = &trace.StepPeak{Categories: []memcache.Share{{Name: "activation", Blocks: 2, Bytes: p.AllocatedPeak / 2}, {Name: "gradient", Blocks: 1, Bytes: p.AllocatedPeak / 3}}}
				p.ReplayedCollectives = []trace.ReplayedCollective{{Operation: "group", Count: r.Int64N(9), Bytes: r.Int64N(1 << 30)}}
				for op := range times {
					x := trace.StepCollective{Operation: "all_reduce", Number: 2*n + int64(op) + 1, Bytes: r.Int64N(1 << 30), Time: times[op][rank]}
					p.Collectives, p.CollectiveTime = append(p.Collectives, x), p.CollectiveTime+x.Time
				}
				all[rank] = append(all[rank], p)
			}
		}
		var files []ranks.File
		sums := make([]ranks.Rank, size)
		for rank := range size {
			var lines bytes.Buffer
			s := &sums[rank]
			s.Last, s.HeldUp, s.LastSteps = last[rank], heldUp[rank], lastSteps[rank]
			s.P = probability(lastSteps[rank], steps, size)
			for _, p := range all[rank] {
				text, err := json.Marshal(p)
				require.NoError(t, err)
				lines.Write(append(text, '\n'))
				s.Steps, s.LastStep, s.HostTime = s.Steps+1, p.Step, s.HostTime+p.HostTime
				if p.Failed {
					s.Failed++
				}
				if p.DeviceTimed {
					s.DeviceTime += p.DeviceTime
				}
				for _, x := range p.Collectives {
					s.Collectives, s.Bytes, s.CollectiveTime = s.Collectives+1, s.Bytes+x.Bytes, s.CollectiveTime+x.Time
				}
				s.Replayed, s.ReplayedBytes = s.Replayed+p.ReplayedCollectives[0].Count, s.ReplayedBytes+p.ReplayedCollectives[0].Bytes
				s.ReservedPeak = max(s.ReservedPeak, p.ReservedPeak)
				if p.AllocatedPeak > s.AllocatedPeak {
					s.AllocatedPeak, s.PeakStep, s.Categories = p.AllocatedPeak, p.Step, p.Peak.Categories
				}
			}
			for other := range size {
				s.Waited += waited[rank][other]
				s.WaitedFor += waited[other][rank]
				if last[other] > 0 {
					want[fmt.Sprintf("waited_ns.%d[%d]", other, rank)] = int64(waited[rank][other])
				}
			}
			files = append(files, ranks.File{Name: fmt.Sprint(rank), Reader: &lines})
		}
		straggler, lasted := -1, time.Duration(0)
		for _, s := range sums {
			lasted += max(s.HostTime, s.DeviceTime)
		}
		for rank, s := range sums {
			if s.P < 0.01 && s.HeldUp >= lasted/size/100 {
				straggler = rank
				stragglers++
			}
		}
		want["straggler"], want["steps"], want["test"] = straggler, steps, "one-sided binomial test, Bonferroni-corrected"
		report, err := ranks.Read(ranks.Options{}, files...)
		require.NoError(t, err)
		text, err := json.Marshal(report)
		require.NoError(t, err)
		got := fromJSON(t, text)
		for name, v := range got { // texts
			if strings.HasPrefix(name, "notes[") {
				require.NotEmpty(t, v)
				delete(got, name)
			}
		}
		for rank, s := range sums {
			text, err := json.Marshal(s)
			require.NoError(t, err)
			for name, v := range fromJSON(t, text) {
				if name == "p" && s.P < 1 {
					v = between{s.P * (1 - 1e-9), s.P * (1 + 1e-9)}
				}
				want[fmt.Sprintf("ranks[%d].%s", rank, name)] = v
			}
		}
		for i, x := range report.Waits {
			text, err := json.Marshal(waits[x.Step-1])
			require.NoError(t, err)
			for name, v := range fromJSON(t, text) {
				want[fmt.Sprintf("waits[%d].%s", i, name)] = v
			}
			require.True(t, i == 0 || report.Waits[i-1].Waited >= x.Waited)
		}
		require.Len(t, report.Waits, steps)
		requireTrue(t, "ranks", got, want, "seed ", seed)
		checkRanksTexts(t, report, sums, straggler, waited)
	}
	requireShown(t, "ranks", "unmatched")
	require.Positive(t, stragglers)
}

// probability is that of one of some ranks coming last in as many steps, or more, if each rank does
// with the same probability: at most.
func probability(last, steps int64, size int) float64 {
	sum := 0.0
	for k := last; k <= steps; k++ {
		ways, _ := new(big.Float).SetInt(new(big.Int).Binomial(steps, k)).Float64()
		sum += ways * math.Pow(1/float64(size), float64(k)) * math.Pow(1-1/float64(size), float64(steps-k))
	}
	return min(1, float64(size)*sum)
}

// checkRanksTexts compares the table's cells, and the data of the page.
func checkRanksTexts(t *testing.T, report *ranks.Report, sums []ranks.Rank, straggler int, waited [3][3]time.Duration) {
	var table, page bytes.Buffer
	require.NoError(t, report.Table(&table))
	require.NoError(t, report.HTML(&page, "training"))
	bytes := func(n int64) string { return humanize.IBytes(uint64(n)) }
	headline := "no rank is a straggler: rank "
	if straggler >= 0 {
		s := sums[straggler]
		lasting := time.Duration(0)
		for _, x := range sums {
			lasting += max(x.HostTime, x.DeviceTime)
		}
		headline = fmt.Sprintf("the straggler is rank %d: it held the others up for %s, %s of the steps' time, all others together waited %s for it, and it came last in %d of 18 steps"+
			" (one-sided binomial test, Bonferroni-corrected: p = %.2g)", straggler, digits(s.HeldUp), percent(s.HeldUp, lasting/3),
			digits(s.WaitedFor), s.LastSteps, s.P)
	}
	_, data, _ := strings.Cut(page.String(), `id="data">`)
	data, _, _ = strings.Cut(data, "</script>")
	var onPage struct {
		ranks.Report
		Headline string
	}
	require.NoError(t, json.Unmarshal([]byte(data), &onPage))
	for _, text := range []string{table.String(), onPage.Headline} {
		require.Contains(t, text, headline)
	}
	var tableRows [][]string
	for _, line := range strings.Split(table.String(), "\n") {
		if cells := wide.Split(strings.TrimSpace(line), -1); len(cells) == 11 {
			tableRows = append(tableRows, cells)
		}
	}
	wantTable := [][]string{{"rank", "steps", "host time", "in collectives", "waited", "held others up", "last in operations", "last in steps", "p",
		"allocated peak", "reserved peak"}}
	for i, x := range sums {
		n := func(v int64) string { return fmt.Sprint(v) }
		wantTable = append(wantTable, []string{n(int64(i)), n(x.Steps), digits(x.HostTime), digits(x.CollectiveTime), digits(x.Waited), digits(x.HeldUp), n(x.Last),
			n(x.LastSteps), fmt.Sprintf("%.2g", x.P), bytes(x.AllocatedPeak), bytes(x.ReservedPeak)})
		got := onPage.Ranks[i]
		require.Equal(t, []any{x.Steps, x.HostTime, x.DeviceTime, x.Collectives, x.Bytes, x.Replayed, x.ReplayedBytes, x.CollectiveTime, x.Waited, x.HeldUp,
			x.Last, x.LastSteps, x.WaitedFor, x.AllocatedPeak, x.PeakStep, x.ReservedPeak, x.Categories},
			[]any{got.Steps, got.HostTime, got.DeviceTime, got.Collectives, got.Bytes, got.Replayed, got.ReplayedBytes, got.CollectiveTime, got.Waited, got.HeldUp,
				got.Last, got.LastSteps, got.WaitedFor, got.AllocatedPeak, got.PeakStep, got.ReservedPeak, got.Categories})
		require.InDelta(t, x.P, got.P, 1e-12)
		for last, d := range waited[i] {
			var shown time.Duration
			if column := onPage.Waited[last]; column != nil {
				shown = column[i]
			}
			require.Equal(t, d, shown, "rank %d for rank %d", i, last)
		}
	}
	require.Equal(t, report.Waits, onPage.Waits)
	require.Equal(t, wantTable, tableRows)
	shown["ranks table"], shown["ranks page"] = map[string]bool{}, map[string]bool{}
}

func percent(part, of time.Duration) string {
	return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(of))
}

// digits is a duration with three digits.
func digits(d time.Duration) string {
	for unit := time.Duration(1); ; unit *= 10 {
		if d/unit < 1000 {
			return d.Round(unit).String()
		}
	}
}
