package kernel

import (
	"runtime"
	"sync"
)

// Grains: the least number of elements worth a goroutine of their own. A goroutine costs about 1 µs to start
// and wait for; the cheap loops take about 0.5 ns for an element, the transcendental ones 5 ns and more.
const (
	grainCheap = 32 << 10
	grainMath  = 2 << 10
	grainFlops = 64 << 10 // multiply-adds
)

// split calls f for consecutive ranges that cover [0, n), on at most GOMAXPROCS goroutines, each with at
// least grain elements.
func split(n, grain int, f func(lo, hi int)) {
	parts := min(runtime.GOMAXPROCS(0), n/max(1, grain))
	if parts <= 1 {
		if n > 0 {
			f(0, n)
		}
		return
	}
	var wg sync.WaitGroup
	for i := 1; i < parts; i++ {
		wg.Go(func() { f(i*n/parts, (i+1)*n/parts) })
	}
	f(0, n/parts)
	wg.Wait()
}
