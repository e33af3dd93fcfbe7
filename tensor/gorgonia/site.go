package gorgonia

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/cistern-ml/cistern/internal/invariants"
)

// site is the position in the user's code that allocated. It is recorded only in builds with the
// tag invariants.
type site uintptr

// callSite returns the first caller outside of this package's types and the library.
func callSite() site {
	if !invariants.Enabled {
		return 0
	}
	var pcs [32]uintptr
	n := runtime.Callers(2, pcs[:])
	frames := runtime.CallersFrames(pcs[:n])
	for {
		f, more := frames.Next()
		if !strings.Contains(f.Function, "/tensor/gorgonia.(*") && !strings.HasPrefix(f.Function, "gorgonia.org/tensor.") {
			return site(f.PC)
		}
		if !more {
			return 0
		}
	}
}

// String returns " allocated at FILE:LINE", or "" if the site is unknown.
func (s site) String() string {
	if s == 0 {
		return ""
	}
	f, _ := runtime.CallersFrames([]uintptr{uintptr(s) + 1}).Next()
	return fmt.Sprintf(" allocated at %s:%d", f.File, f.Line)
}
