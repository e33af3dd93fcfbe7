package invariants

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
)

var (
	underflows atomic.Int64
	logged     sync.Once
)

// Underflow reports a counter that fell below zero, which is a mistake of this module. Builds with the tag
// invariants panic. Others count it, and log the first one to slog's default logger, on a goroutine of its
// own: the caller may hold locks.
func Underflow(counter string, n int64) {
	if Enabled {
		panic(fmt.Sprintf("%s fell to %d", counter, n))
	}
	underflows.Add(1)
	logged.Do(func() {
		go slog.Error("a counter of cistern fell below zero, and statistics are wrong from here on; please report it", "counter", counter, "value", n)
	})
}

// Underflows is the number of underflows in this process.
func Underflows() int64 { return underflows.Load() }
