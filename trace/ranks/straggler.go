package ranks

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"gonum.org/v1/gonum/mathext"
)

const (
	testName     = "one-sided binomial test, Bonferroni-corrected"
	significance = 0.01 // a straggler's P is below this
	leastCost    = 0.01 // of the steps' time: a straggler's HeldUp is at least this
)

// judge tests all ranks. Of those that pass it names the one that held up the others the longest.
func (r *Report) judge() {
	r.Test = testName
	for i := range r.Ranks {
		x := &r.Ranks[i]
		x.P = chance(x.LastSteps, r.Steps, len(r.Ranks))
		late := x.P < significance && float64(x.HeldUp) >= leastCost*float64(r.stepTime())
		if late && (r.Straggler < 0 || x.HeldUp > r.Ranks[r.Straggler].HeldUp) {
			r.Straggler = i
		}
	}
}

// chance returns an upper bound of the probability that any of several ranks that are alike comes
// last in as many of the steps, or more. Steps are independent of each other, whereas the
// operations of a step are not, so each step counts once.
func chance(last, steps int64, ranks int) float64 {
	if last == 0 {
		return 1
	}
	n := float64(ranks)
	// The tail of the binomial distribution.
	tail := mathext.RegIncBeta(float64(last), float64(steps-last+1), 1/n)
	return min(1, n*tail)
}

// stepTime returns the duration of all steps, in the mean of all ranks. A step whose work outlasts it
// on the host, because the host does not wait, takes as long as the device.
func (r *Report) stepTime() (total time.Duration) {
	for _, x := range r.Ranks {
		total += max(x.HostTime, x.DeviceTime) / time.Duration(len(r.Ranks))
	}
	return total
}

// Headline returns a sentence that names the straggler, or the reason why none is named.
func (r *Report) Headline() string {
	if r.Steps == 0 || len(r.Ranks) < 2 || r.Straggler >= len(r.Ranks) {
		return "no single rank held up the others"
	}
	i := r.Straggler
	if i < 0 {
		most := slices.MaxFunc(r.Ranks, func(x, y Rank) int { return cmp.Compare(x.LastSteps, y.LastSteps) })
		i = slices.IndexFunc(r.Ranks, func(x Rank) bool { return x.LastSteps == most.LastSteps })
	}
	x := r.Ranks[i]
	last := fmt.Sprintf("came last in %d of %d steps (%s: p = %.2g)", x.LastSteps, r.Steps, r.Test, x.P)
	cost := fmt.Sprintf("held the others up for %s, %s of the steps' time", duration(x.HeldUp), per(x.HeldUp, r.stepTime()))
	switch least := leastSteps(len(r.Ranks)); {
	case r.Straggler >= 0:
		return fmt.Sprintf("the straggler is rank %d: it %s, all others together waited %s for it, and it %s", i, cost, duration(x.WaitedFor), last)
	case r.Steps < least:
		return fmt.Sprintf("no straggler can be named: rank %d %s, and with %d ranks at least %d steps are needed", i, last, len(r.Ranks), least)
	case x.P >= significance:
		return fmt.Sprintf("no rank is a straggler: rank %d %s, which chance can explain", i, last)
	}
	return fmt.Sprintf("no rank is a straggler: rank %d %s, but held the others up for %s, less than %.0f%% of the steps' time", i, last, duration(x.HeldUp), 100*leastCost)
}

// leastSteps returns the number of steps in which a straggler must come last if it does so in all
// of them.
func leastSteps(ranks int) (n int64) {
	for n = 1; chance(n, n, ranks) >= significance; n++ {
	}
	return n
}
