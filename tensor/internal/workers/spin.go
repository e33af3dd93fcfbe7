package workers

import (
	"runtime"
	"time"
)

// spinTime is how long one looks for what others are about to do before one sleeps: to be woken takes up to 50 µs where the
// processor sleeps too, as much as a small product. After so many looks, a few microseconds, goroutines that are ready may have
// the processor.
const (
	spinTime = 50 * time.Microsecond
	looks    = 1000
)

// spin reports whether ready became true in time.
func spin(ready func() bool) bool {
	for began := time.Now(); time.Since(began) < spinTime; runtime.Gosched() {
		for range looks {
			if ready() {
				return true
			}
		}
	}
	return false
}
