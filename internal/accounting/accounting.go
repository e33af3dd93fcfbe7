// Package accounting reports counts that can't be, such as bytes below zero. They are mistakes of this module, which a
// program goes on with: its figures are wrong from then on.
package accounting

import (
	"log/slog"
	"sync"
	"sync/atomic"
)

var (
	faults   atomic.Int64
	reported sync.Map // by subject and count
)

// Broken counts a fault in every build. The first one of each count of a subject is an event of the default logger of
// log/slog. Any lock may be held: the event is logged by another goroutine.
func Broken(subject, count string, value int64) {
	n := faults.Add(1)
	if _, again := reported.LoadOrStore([2]string{subject, count}, true); !again {
		go slog.Error("cistern: broken accounting: please report it", "subject", subject, "count", count, "value", value, "faults", n)
	}
}

// Faults is how many there were since the program began.
func Faults() int64 { return faults.Load() }
