package tensor

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/memcache"
)

// Leak is a tensor that became unreachable without having been released.
type Leak struct {
	Shape Shape
	Dtype Dtype
	Bytes int64
	Label memcache.Label // of its memory when it was found: module, category, step
	Stack []uintptr      // the call stack that made it, for runtime.CallersFrames
}

// Place returns the function, file and line that made the tensor: the innermost frame outside
// package tensor and the packages of autograd.
func (l Leak) Place() string { return place(l.Stack) }

// String returns one line with everything except the stack.
func (l Leak) String() string {
	return fmt.Sprintf("tensor: %v %v of %s%s was never released; made at %s", l.Dtype, l.Shape, humanize.IBytes(uint64(l.Bytes)), whose(l.Label), l.Place())
}

// whose formats a label for use after a size. The zero label gives nothing.
func whose(l memcache.Label) string {
	if l == (memcache.Label{}) {
		return ""
	}
	return ", " + l.String() + ","
}

func place(stack []uintptr) string {
	frames := runtime.CallersFrames(stack)
	first := ""
	for {
		f, more := frames.Next()
		if f.Function != "" {
			at := fmt.Sprintf("%s (%s:%d)", f.Function, f.File, f.Line)
			if first == "" {
				first = at
			}
			if !internalFrame(f) {
				return at
			}
		}
		if !more {
			break
		}
	}
	if first == "" {
		return "an unknown place"
	}
	return first
}

func internalFrame(f runtime.Frame) bool {
	inside := strings.HasPrefix(f.Function, "github.com/cistern-ml/cistern/tensor.") ||
		strings.HasPrefix(f.Function, "github.com/cistern-ml/cistern/autograd.") ||
		strings.HasPrefix(f.Function, "github.com/cistern-ml/cistern/autograd/")
	return inside && !strings.HasSuffix(f.File, "_test.go")
}
