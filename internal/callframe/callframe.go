// Package callframe names the calls of stacks, and finds those of the user, in the same way for all
// packages that print them.
package callframe

import "runtime"

// Unknown is the function of a call that the program's tables don't have.
const Unknown = "unknown"

// Of is the call that a program counter of runtime.Callers stands for: exactly one, since a
// function that the compiler inlined has a counter of its own there. ok is false for what is no
// call of the program: runtime.goexit, at the root of each goroutine.
func Of(pc uintptr) (f runtime.Frame, ok bool) {
	f, _ = runtime.CallersFrames([]uintptr{pc}).Next()
	if f.Function == "runtime.goexit" {
		return runtime.Frame{}, false
	}
	if f.Function == "" {
		f.Function = Unknown
	}
	return f, true
}
