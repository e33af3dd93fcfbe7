package callframe

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
)

// Line returns the innermost line of the user's program in a stack of runtime.Callers or, if there
// is none, the line of this module that [FromUser] selects. Its function is Unknown if the stack
// has no call.
func Line(stack []uintptr) runtime.Frame {
	var calls []runtime.Frame
	for _, pc := range stack {
		if f, ok := Of(pc); ok {
			calls = append(calls, f)
		}
	}
	calls = FromUser(calls, func(f runtime.Frame) (string, string) { return f.Function, f.File })
	if len(calls) == 0 {
		return runtime.Frame{Function: Unknown}
	}
	return calls[0]
}

// Place formats a line as "model.go:31 (main.(*net).Forward)", or returns the function alone if
// file is "".
func Place(function, file string, line int) string {
	function = function[strings.LastIndexByte(function, '/')+1:]
	if file == "" {
		return function
	}
	return fmt.Sprintf("%s:%d (%s)", filepath.Base(file), line, function)
}
