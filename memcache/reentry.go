package memcache

import (
	"reflect"
	"runtime"
)

// Functions that failing requests call, reclaimers and those of OnOutOfMemory, may allocate. If
// such a request fails it must not call them again without end. The stack shows whether a request
// is one of theirs, because its context may be any.

var (
	runsReclaimer = nameOf((*reclaimers).run)
	runsObserver  = nameOf((*oomObservers).run)
)

// nameOf returns the name of a function as it appears in stacks.
func nameOf(f any) string { return runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name() }

// inside reports whether the goroutine is in a call of the named function. Only requests that found
// no memory call it; it walks the whole stack.
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
