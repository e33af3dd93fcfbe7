package callframe

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
)

// Line is the innermost line of the user's program in a stack of runtime.Callers or, without one,
// of this module, as [FromUser] finds it. Its function is Unknown if the stack has no call.
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

// Place is such as "model.go:31 (main.(*net).Forward)", or the function alone if the file is "".
func Place(function, file string, line int) string {
	function = function[strings.LastIndexByte(function, '/')+1:]
	if file == "" {
		return function
	}
	return fmt.Sprintf("%s:%d (%s)", filepath.Base(file), line, function)
}
