package cisterntest

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cistern-ml/cistern/internal/race"
)

// BesideBusy is the median of what f counts while a goroutine takes a lock again and again, half of the time for a tenth of a microsecond
// each. f is called again where that goroutine did not run beside it for most of the time.
func BesideBusy(tb testing.TB, mu *sync.Mutex, f func() int64) int64 {
	tb.Helper()
	if race.Enabled {
		tb.Skip("it is a matter of nanoseconds, and the race detector's are longer")
	}
	const rounds = 5
	take := func() {
		mu.Lock()
		Spin(100 * time.Nanosecond)
		mu.Unlock()
		Spin(100 * time.Nanosecond)
	}
	const calls = 1000
	begin := time.Now()
	for range calls {
		take()
	}
	alone := time.Since(begin) / calls
	var counts []int64
	for deadline := time.Now().Add(10 * time.Second); len(counts) < rounds; {
		var ended atomic.Bool
		var taken atomic.Int64
		var group sync.WaitGroup
		group.Go(func() {
			for !ended.Load() {
				take()
				taken.Add(1)
			}
		})
		for taken.Load() == 0 {
			time.Sleep(time.Microsecond)
		}
		before, begin := taken.Load(), time.Now()
		n := f()
		took, elapsed := taken.Load()-before, time.Since(begin)
		ended.Store(true)
		group.Wait()
		switch {
		case took > int64(elapsed/alone*2/3):
			counts = append(counts, n)
		case time.Now().After(deadline):
			tb.Skip("this machine does not run two goroutines at once")
		}
	}
	slices.Sort(counts)
	return counts[rounds/2]
}

// Spin passes time without sleeping.
func Spin(d time.Duration) {
	for begin := time.Now(); time.Since(begin) < d; {
	}
}
