package ranks

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/trace"
)

// world is the arrivals of ranks at the operations of a training.
type world struct {
	ranks, steps, operations int
	noise                    func(*rand.Rand) float64 // how late a rank arrives, in ms
	shared                   float64                  // of the noise, by a step's operations of a rank: 0 to 1
	tick                     time.Duration            // of the clock

	late   float64       // ms that rank 0 is late besides, in the first operation of a step
	often  float64       // in this share of the steps
	lasted time.Duration // each step
}

var noises = map[string]func(*rand.Rand) float64{
	"exponential": func(r *rand.Rand) float64 { return r.ExpFloat64() },
	"uniform":     func(r *rand.Rand) float64 { return r.Float64() },
	"lognormal":   func(r *rand.Rand) float64 { return math.Exp(2 * r.NormFloat64()) },
	"heavy":       func(r *rand.Rand) float64 { return math.Pow(1-r.Float64(), -1/1.2) },
	"rare": func(r *rand.Rand) float64 {
		if r.IntN(20) > 0 {
			return 0
		}
		return 10 * r.Float64()
	},
}

// arrivals returns when each rank arrives, by step and operation.
func (w world) arrivals(random *rand.Rand) [][][]time.Duration {
	all := make([][][]time.Duration, w.steps)
	for s := range all {
		own := make([]float64, w.ranks) // of the step
		for rank := range own {
			own[rank] = w.noise(random)
		}
		late := w.late
		if random.Float64() >= w.often {
			late = 0
		}
		for op := range w.operations {
			row := make([]time.Duration, w.ranks)
			for rank := range row {
				at := w.shared*own[rank] + (1-w.shared)*w.noise(random)
				if rank == 0 && op == 0 {
					at += late
				}
				row[rank] = time.Duration(min(at, 1e4) * 1e6).Round(max(1, w.tick))
			}
			all[s] = append(all[s], row)
		}
	}
	return all
}

// report returns the report of the ranks that arrive at these times.
func (w world) report(t *testing.T, arrivals [][][]time.Duration) *Report {
	t.Helper()
	var m Merger
	for s, operations := range arrivals {
		for rank := range w.ranks {
			p := trace.StepProfile{Step: int64(s + 1), Rank: rank, WorldSize: w.ranks, Communicator: "c", HostTime: w.lasted}
			for op, row := range operations {
				p.Collectives = append(p.Collectives, trace.StepCollective{
					Number: int64(s*w.operations + op + 1), Time: time.Microsecond + slices.Max(row) - row[rank]})
			}
			require.NoError(t, m.Add(p))
		}
	}
	r, err := m.Report()
	require.NoError(t, err)
	return r
}

// lastOf returns the rank that held up the others for the longest time in a step, and -1 if two
// did.
func lastOf(operations [][]time.Duration) int {
	held := make([]time.Duration, len(operations[0]))
	for _, row := range operations {
		sorted := slices.Sorted(slices.Values(row))
		n := len(sorted)
		held[slices.Index(row, sorted[n-1])] += sorted[n-1] - sorted[n-2]
	}
	sorted := slices.Sorted(slices.Values(held))
	if sorted[len(sorted)-1] == sorted[len(sorted)-2] {
		return -1
	}
	return slices.Index(held, sorted[len(sorted)-1])
}

// TestParallelAlikeRanks: of 1,000 trainings of ranks that are alike, whatever their noise is and
// however much of it the operations of a step share, at most 1 % have a straggler.
func TestParallelAlikeRanks(t *testing.T) {
	const worlds = 1000
	names := []string{"exponential", "uniform", "lognormal", "heavy", "rare"}
	named, decided, naive := 0, int64(0), 0
	for seed := range uint64(worlds) {
		random := rand.New(rand.NewPCG(seed, 44))
		w := world{ranks: 2 + random.IntN(7), steps: 1 + random.IntN(60), operations: 1 + random.IntN(8),
			noise: noises[names[seed%5]], shared: []float64{0, 0.5, 0.9, 1}[random.IntN(4)], tick: []time.Duration{0, time.Millisecond}[random.IntN(2)]}
		r := w.report(t, w.arrivals(random))
		decided += r.Steps
		if r.Straggler >= 0 {
			named++
			t.Logf("seed %d: %s", seed, r.Headline())
		}
		for _, x := range r.Ranks { // what it would be with operations as the unit
			if chance(x.Last, r.Matched, w.ranks) < significance {
				naive++
				break
			}
		}
	}
	t.Logf("%d of %d trainings have a straggler, in %d steps that count; %d if each operation counts", named, worlds, decided, naive)
	require.LessOrEqual(t, named, worlds/100)
	require.Greater(t, decided, int64(worlds*10))
	require.Greater(t, naive, worlds/5, "the worlds are such that the unit matters")
}

// TestParallelLateRank: a rank that is late by more than the noise in half of the steps is named.
func TestParallelLateRank(t *testing.T) {
	const worlds = 100
	for _, c := range []struct {
		ranks, steps int
		often        float64
		least        int // of worlds
	}{
		{2, 20, 0.6, 0}, {2, 60, 0.3, 0}, {2, 60, 0.6, 90}, {4, 20, 0.3, 0}, {4, 20, 0.6, 60},
		{4, 60, 0.3, 30}, {4, 60, 0.6, 99}, {8, 10, 1, 99}, {8, 20, 0.6, 95}, {8, 60, 0.3, 90},
	} {
		found := 0
		for seed := range uint64(worlds) {
			random := rand.New(rand.NewPCG(seed, 5))
			w := world{ranks: c.ranks, steps: c.steps, operations: 4, noise: func(r *rand.Rand) float64 { return 0.2 * r.ExpFloat64() },
				shared: 0.5, late: 2, often: c.often, lasted: 20 * time.Millisecond}
			r := w.report(t, w.arrivals(random))
			if r.Straggler >= 0 {
				require.Zero(t, r.Straggler)
				require.Contains(t, r.Headline(), "the straggler is rank 0: it held the others up for ")
				found++
			}
		}
		t.Logf("%d ranks, one late in %.0f%% of %d steps: named in %.1f%% of %d trainings", c.ranks, 100*c.often, c.steps, 100*float64(found)/worlds, worlds)
		assert.GreaterOrEqual(t, found, c.least)
	}
}

// TestParallelChanceIsThatOfPermutations: a rank's P is the probability that it comes last as often
// if the ranks are permuted at random in each step, times the number of ranks.
func TestParallelChanceIsThatOfPermutations(t *testing.T) {
	const permutations = 4_000
	for seed := range uint64(6) {
		random := rand.New(rand.NewPCG(seed, 9))
		w := world{ranks: 2 + int(seed), steps: 6 + random.IntN(8), operations: 3, noise: noises["lognormal"], shared: 0.7, late: 3, often: 0.4}
		arrivals := w.arrivals(random)
		r := w.report(t, arrivals)
		last := make([]int64, w.ranks)
		for _, operations := range arrivals {
			last[lastOf(operations)]++
		}
		tails, highest := make([]int, w.ranks), 0
		for range permutations {
			counts := make([]int64, w.ranks)
			for _, operations := range arrivals {
				places := random.Perm(w.ranks)
				permuted := make([][]time.Duration, len(operations))
				for op, row := range operations {
					permuted[op] = make([]time.Duration, w.ranks)
					for rank, at := range row {
						permuted[op][places[rank]] = at
					}
				}
				counts[lastOf(permuted)]++
			}
			for rank := range tails {
				if counts[rank] >= last[rank] {
					tails[rank]++
				}
			}
			if slices.Max(counts) >= slices.Max(last) {
				highest++
			}
		}
		smallest := 1.0
		for rank, x := range r.Ranks {
			require.Equal(t, last[rank], x.LastSteps)
			want := float64(tails[rank]) / permutations
			sigma := math.Sqrt(max(want*(1-want), 1e-4) / permutations)
			if x.P < 1 {
				assert.InDelta(t, want, x.P/float64(w.ranks), 5*sigma)
			} else {
				assert.Greater(t, want+5*sigma, 1/float64(w.ranks))
			}
			smallest = min(smallest, x.P)
		}
		t.Logf("%d ranks, %d steps: the smallest p is %.3g; a rank comes last as often in %.3g of the permutations", w.ranks, w.steps, smallest, float64(highest)/permutations)
		assert.LessOrEqual(t, float64(highest)/permutations, smallest+5*math.Sqrt(0.25/permutations), "P is an upper bound")
	}
}

// TestParallelChance compares probabilities with sums of exact fractions.
func TestParallelChance(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		ranks, steps := 2+random.IntN(100), random.Int64N(300)
		last := random.Int64N(min(steps, 1+random.Int64N(60)) + 1)
		sum := new(big.Int)
		for k := last; k <= steps; k++ { // steps over k, times (ranks - 1) to the power of steps - k
			x := new(big.Int).Exp(big.NewInt(int64(ranks-1)), big.NewInt(steps-k), nil)
			sum.Add(sum, x.Mul(x, new(big.Int).Binomial(steps, k)))
		}
		all := new(big.Int).Exp(big.NewInt(int64(ranks)), big.NewInt(steps), nil)
		want, _ := new(big.Rat).SetFrac(sum.Mul(sum, big.NewInt(int64(ranks))), all).Float64()
		require.InEpsilon(t, min(1, want), chance(last, steps, ranks), 1e-9, "%d of %d, %d ranks", last, steps, ranks)
	}
	require.Zero(t, chance(1<<40, 1<<40, 2), "no NaN")
	require.Equal(t, 1.0, chance(1, 1<<40, 4096))
}

// TestParallelHeadline: the sentences about ranks that no test supports.
func TestParallelHeadline(t *testing.T) {
	alternate := func(steps int, last func(step int) int) [][][]time.Duration {
		all := make([][][]time.Duration, steps)
		for s := range all {
			row := make([]time.Duration, 2)
			row[last(s)] = time.Millisecond
			all[s] = [][]time.Duration{row}
		}
		return all
	}
	one := func(int) int { return 1 }
	const test = "one-sided binomial test, Bonferroni-corrected: p = "
	for _, c := range []struct {
		arrivals [][][]time.Duration
		lasted   time.Duration
		want     string
	}{
		{alternate(61, func(s int) int { return s % 2 }), 1, "no rank is a straggler: rank 0 came last in 31 of 61 steps (" + test + "1), which chance can explain"},
		{alternate(1, one), 1, "no straggler can be named: rank 1 came last in 1 of 1 steps (" + test + "1), and with 2 ranks at least 8 steps are needed"},
		{alternate(3, one), 1, "no straggler can be named: rank 1 came last in 3 of 3 steps (" + test + "0.25), and with 2 ranks at least 8 steps are needed"},
		{alternate(7, one), 1, "no straggler can be named: rank 1 came last in 7 of 7 steps (" + test + "0.016), and with 2 ranks at least 8 steps are needed"},
		{alternate(8, one), 100 * time.Millisecond, "the straggler is rank 1: it held the others up for 8ms, 1.0% of the steps' time, all others together waited 8ms for it, and it came last in 8 of 8 steps (" + test + "0.0078)"},
		{alternate(8, one), 101 * time.Millisecond, "no rank is a straggler: rank 1 came last in 8 of 8 steps (" + test + "0.0078), but held the others up for 8ms, less than 1% of the steps' time"},
		{alternate(8, one), time.Second, "no rank is a straggler: rank 1 came last in 8 of 8 steps (" + test + "0.0078), but held the others up for 8ms, less than 1% of the steps' time"},
		{[][][]time.Duration{{{5, 5}}}, 1, "no single rank held up the others"},
		{[][][]time.Duration{{{5, 0}, {0, 5}}}, 1, "no single rank held up the others"},
	} {
		r := world{ranks: 2, operations: len(c.arrivals[0]), lasted: c.lasted}.report(t, c.arrivals)
		assert.Equal(t, c.want, r.Headline())
	}
	for ranks, want := range map[int]int64{2: 8, 3: 6, 4: 5, 8: 4, 4096: 2} {
		require.Equal(t, want, leastSteps(ranks), fmt.Sprint(ranks))
	}
}

// TestTimeOfSteps: a host that only queues a step's work is done before the device, whose time counts.
func TestTimeOfSteps(t *testing.T) {
	r := &Report{Ranks: []Rank{{HostTime: 2, DeviceTime: 100}, {HostTime: 60, DeviceTime: 50}, {HostTime: 50}}}
	require.EqualValues(t, 33+20+16, r.stepTime())
}

// TestParallelTwoLateRanks: of two ranks that are late, each in half of the steps, the one that
// costs more is the straggler.
func TestParallelTwoLateRanks(t *testing.T) {
	var arrivals [][][]time.Duration
	for s := range 40 {
		row := make([]time.Duration, 8)
		row[3+s%2] = time.Duration(1+s%2) * time.Millisecond
		arrivals = append(arrivals, [][]time.Duration{row})
	}
	r := world{ranks: 8, operations: 1}.report(t, arrivals)
	require.Equal(t, 4, r.Straggler)
	require.Less(t, r.Ranks[3].P, 0.01)
}
