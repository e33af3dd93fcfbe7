// Package callframe names the calls in stacks and selects those of the user, in the same way for
// all packages that print them.
package callframe

import "runtime"

// Unknown is the function of a call without symbols in the program.
const Unknown = "unknown"

// Of returns the call that a program counter of runtime.Callers stands for. It is exactly one,
// because a function that the compiler has inlined has a counter of its own there. ok is false for
// runtime.goexit, at the root of each goroutine, which is not a call of the program.
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
