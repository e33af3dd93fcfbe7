package workers

import (
	"runtime"
	"time"
)

// spinTime is how long a goroutine polls before it sleeps: for work, for the end of a phase, or for
// the workers to leave a task. Waking a goroutine takes up to wakeTime if the processor sleeps too,
// which is as long as a small product. Polling four times as long keeps the workers awake while a
// program waits for a product and queues the next one. After every looks polls, which take a few
// microseconds, the goroutine yields the processor to goroutines that are ready.
const (
	spinTime = 200 * time.Microsecond
	wakeTime = 50 * time.Microsecond
	looks    = 1000
)

// spin reports whether ready became true within spinTime.
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
