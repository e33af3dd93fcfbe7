package workers

import (
	"runtime"
	"time"
)

// spinTime is how long a goroutine polls before it sleeps: for work, for the end of a phase, or for
// the workers to leave a task. Waking a goroutine takes up to wakeTime if the processor sleeps too,
// which is as long as a small product. Polling four times as long keeps the workers awake while a
// program waits for a product and queues the next one. Every yieldTime the goroutine yields the
// processor to goroutines that are ready. Meanwhile it sees no work, and all that yield contend for
// the scheduler's lock.
const (
	spinTime  = 200 * time.Microsecond
	wakeTime  = 50 * time.Microsecond
	yieldTime = 50 * time.Microsecond
	looks     = 100
)

// spin reports whether ready became true within spinTime.
func spin(ready func() bool) bool {
	began := time.Now()
	for yielded := began; ; {
		for range looks {
			if ready() {
				return true
			}
		}
		now := time.Now()
		if now.Sub(began) >= spinTime {
			return false
		}
		if now.Sub(yielded) >= yieldTime {
			runtime.Gosched()
			yielded = time.Now()
		}
	}
}
