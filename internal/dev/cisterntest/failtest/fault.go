// Package failtest runs small programs with the k-th call failing, for each k: driver calls,
// memory, writes, and the ends of contexts. After a failure an operation has done all or nothing,
// its error has the failure as its cause, nothing has leaked, and the same operation succeeds. A
// package's test fills a [Suite] with rows and runs it.
package failtest

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// Kind is a kind of failure.
type Kind uint8

const (
	// Failed: a driver call returns ErrFailed and does nothing.
	Failed Kind = iota
	// OutOfMemory: an allocation returns an error that wraps device.ErrOutOfMemory.
	OutOfMemory
	// Slow: a driver call takes a while.
	Slow
	// Ended: the context ends before a driver call, or at a check of the context.
	Ended
	// Short: a write writes half of its bytes, and returns an error that wraps io.ErrShortWrite.
	Short
	kinds
)

// String names the kind, for example "out of memory".
func (k Kind) String() string {
	return [...]string{"failed", "out of memory", "slow", "ended", "short"}[k]
}

// ErrFailed is the error of a failed driver call.
var ErrFailed = errors.New("failed for a test")

// cause returns the error that an operation's error must wrap.
func (k Kind) cause() error {
	return [...]error{ErrFailed, device.ErrOutOfMemory, nil, context.Canceled, io.ErrShortWrite}[k]
}

// Faults counts the calls that can fail, and makes one of them fail. Any goroutine may use it.
type Faults struct {
	// Pause is the time that a slow call takes; 0: a millisecond.
	Pause time.Duration

	mu     sync.Mutex
	armed  bool
	kind   Kind
	left   int // calls until the failing one; 0: none fails
	calls  [kinds]int
	failed string // name of the call that failed
	cancel context.CancelFunc
	spared map[string]bool
}

// Spare exempts the calls of these names from failures. It is called before Arm.
func (f *Faults) Spare(names ...string) {
	f.spared = make(map[string]bool)
	for _, name := range names {
		f.spared[name] = true
	}
}

// Arm makes the k-th call that can fail in this way fail, and restarts the count. It returns a
// context that may end.
//
//go:norace
func (f *Faults) Arm(kind Kind, k int) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	race.Disable()
	defer race.Enable()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed, f.kind, f.left, f.calls, f.failed, f.cancel = true, kind, k, [kinds]int{}, "", cancel
	return &checked{ctx, f}
}

// Disarm ends all failures. It returns the name of the call that failed, if any, and the number of
// calls that could.
//
//go:norace
func (f *Faults) Disarm() (failed string, calls [kinds]int) {
	race.Disable()
	defer race.Enable()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed, f.left = false, 0
	return f.failed, f.calls
}

// count is at without the end of the context. The race detector does not see it, because its lock
// would order goroutines whose events are missing.
//
//go:norace
func (f *Faults) count(call string, ways []Kind) (kind Kind, fails bool) {
	race.Disable()
	defer race.Enable()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.armed || f.spared[call] {
		return 0, false
	}
	for _, w := range ways {
		f.calls[w]++
		if w == f.kind && f.left > 0 {
			if f.left--; f.left == 0 {
				f.failed, fails = call, true
			}
		}
	}
	return f.kind, fails
}

// at counts a call that can fail in these ways, and reports whether it is the failing one.
func (f *Faults) at(call string, ways ...Kind) (kind Kind, fails bool) {
	if kind, fails = f.count(call, ways); fails && kind == Ended {
		f.cancel()
	}
	return kind, fails
}

// failure is the error of a failed call. It does not use a pool of package fmt, because its memory
// would be a race where the detector is disabled, as around polls.
type failure struct {
	call  string
	cause error
}

func (f failure) Error() string { return f.call + ": " + f.cause.Error() }
func (f failure) Unwrap() error { return f.cause }

// call counts a driver call. It returns the injected error, or nil.
func (f *Faults) call(name string) error {
	switch kind, fails := f.at(name, Failed, Slow, Ended); {
	case !fails:
	case kind == Failed:
		return failure{name, ErrFailed}
	case kind == Slow:
		time.Sleep(max(f.Pause, time.Millisecond))
	}
	return nil
}

// alloc counts a driver call that allocates memory.
func (f *Faults) alloc(name string) error {
	if kind, fails := f.at(name, OutOfMemory); fails && kind == OutOfMemory {
		return failure{name, device.ErrOutOfMemory}
	}
	return f.call(name)
}

// checked is a context of which each check may find that it has ended.
type checked struct {
	context.Context
	faults *Faults
}

func (c *checked) Err() error {
	c.faults.at("context.Err", Ended)
	return c.Context.Err()
}

func (c *checked) Done() <-chan struct{} {
	c.faults.at("context.Done", Ended)
	return c.Context.Done()
}
