package memcache

import (
	"reflect"
	"runtime"
)

// Functions that failing requests call, reclaimers and those of OnOutOfMemory, may allocate. A request
// of theirs that fails must not call them without end. Whether it is theirs shows on the stack: the
// request's context may be any.

var (
	runsReclaimer = nameOf((*reclaimers).run)
	runsObserver  = nameOf((*oomObservers).run)
)

// nameOf is the name of a function as stacks have it.
func nameOf(f any) string { return runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name() }

// inside reports whether the goroutine is in a call of the function of a name. It is asked by requests
// that found no memory, and walks the whole stack.
func inside(name string) bool {
	var pcs [64]uintptr
	for skip := 2; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs[:])
		frames := runtime.CallersFrames(pcs[:n])
		for range n {
			frame, more := frames.Next()
			if frame.Function == name {
				return true
			}
			if !more {
				break
			}
		}
		if n < len(pcs) {
			return false
		}
	}
}
