package kernel

import (
	"runtime"

	"github.com/cistern-ml/cistern/tensor/internal/spare"
	"github.com/cistern-ml/cistern/tensor/internal/workers"
)

// Grains are the smallest numbers of elements for which another goroutine pays. Waking a goroutine
// and waiting for it costs about 1 µs. Cheap loops take about 0.5 ns per element, transcendental
// ones 5 ns and more.
const (
	grainCheap = 32 << 10
	grainMath  = 2 << 10
	grainFlops = 256 << 10 // multiply-adds
)

// split calls f for consecutive ranges that cover [0, n), on at most GOMAXPROCS goroutines, each
// with at least grain elements.
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
	r := spareRanges.Take()
	r.n, r.parts, r.f = n, parts, f
	workers.Do(r, 1, parts-1)
	*r = ranges{}
	spareRanges.Give(r)
}

// ranges is a split as a job.
type ranges struct {
	n, parts int
	f        func(lo, hi int)
}

// Units implements workers.Job.
func (r *ranges) Units(int) int { return r.parts }

// Run implements workers.Job.
func (r *ranges) Run(_, i int) { r.f(i*r.n/r.parts, (i+1)*r.n/r.parts) }

var spareRanges spare.Pool[ranges]
