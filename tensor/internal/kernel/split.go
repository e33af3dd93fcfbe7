package kernel

import (
	"runtime"

	"github.com/cistern-ml/cistern/tensor/internal/workers"
)

// Grains: the least number of elements worth a goroutine of their own. A goroutine costs about 1 µs to wake
// and wait for; the cheap loops take about 0.5 ns for an element, the transcendental ones 5 ns and more.
const (
	grainCheap = 32 << 10
	grainMath  = 2 << 10
	grainFlops = 256 << 10 // multiply-adds
)

// split calls f for consecutive ranges that cover [0, n), on at most GOMAXPROCS goroutines, each with at
// least grain elements.
func split(n, grain int, f func(lo, hi int)) {
	parts := n / max(1, grain)
	if parts > 1 {
		parts = min(parts, runtime.GOMAXPROCS(0))
	}
	if parts <= 1 {
		if n > 0 {
			f(0, n)
		}
		return
	}
	r := spareRanges.take()
	r.n, r.parts, r.f = n, parts, f
	workers.Do(r, 1, parts-1)
	*r = ranges{}
	spareRanges.give(r)
}

// ranges is a split as a job.
type ranges struct {
	n, parts int
	f        func(lo, hi int)
}

// Units is for package workers.
func (r *ranges) Units(int) int { return r.parts }

// Run is for package workers.
func (r *ranges) Run(_, i int) { r.f(i*r.n/r.parts, (i+1)*r.n/r.parts) }

var spareRanges spares[ranges]
