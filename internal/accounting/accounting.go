// Package accounting reports impossible counts, such as bytes below zero. They are bugs of this
// module. The program continues, but its figures are wrong from then on.
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

// Broken counts a fault, in every build. The first fault of each count of a subject is logged with
// the default logger of log/slog. Any lock may be held, because another goroutine logs it.
func Broken(subject, count string, value int64) {
	n := faults.Add(1)
	if _, again := reported.LoadOrStore([2]string{subject, count}, true); !again {
		go slog.Error("cistern: broken accounting: please report it", "subject", subject, "count", count, "value", value, "faults", n)
	}
}

// Faults returns the number of faults since the program began.
func Faults() int64 { return faults.Load() }
