package tensor

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	gtensor "gorgonia.org/tensor"
)

// Leak is a tensor that became unreachable without having been released.
type Leak struct {
	Shape gtensor.Shape
	Dtype gtensor.Dtype
	Bytes int64
	Stack []uintptr // the call stack that made it, for runtime.CallersFrames
}

// Place is the function, file and line that made the tensor: the innermost one outside this module's own
// packages.
func (l Leak) Place() string { return place(l.Stack) }

// String is one line with everything but the stack.
func (l Leak) String() string {
	return fmt.Sprintf("tensor: %v %v of %s was never released; made at %s", l.Dtype, l.Shape, humanize.IBytes(uint64(l.Bytes)), l.Place())
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
		strings.HasPrefix(f.Function, "github.com/cistern-ml/cistern/autograd.")
	return inside && !strings.HasSuffix(f.File, "_test.go")
}

// reclaimer finds tensors that nobody can release any more.
type reclaimer struct {
	mu    sync.Mutex
	last  time.Time // when the last collection ended
	freed int64     // what it freed
}

// reclaimInterval is the least time between two garbage collections for the sake of memory.
const reclaimInterval = time.Second

// reclaim is called when the cache has run out of memory: it collects garbage and frees the memory of
// unreleased tensors that turn out to be unreachable. It does not rely on cleanups, which run some time
// later: a weak pointer is nil as soon as the collection has ended. Whoever waited for a collection by
// another goroutine shares its result.
func (rt *Runtime) reclaim(context.Context, int64) (freed int64) {
	asked := time.Now()
	dead := rt.collect(asked, &freed)
	for _, h := range dead {
		h.report()
	}
	return freed
}

func (rt *Runtime) collect(asked time.Time, freed *int64) (dead []*handle) {
	gc := &rt.gc
	gc.mu.Lock()
	defer gc.mu.Unlock()
	if gc.last.After(asked) {
		*freed = gc.freed
		return nil
	}
	if n, _ := rt.live.count(); n == 0 || time.Since(gc.last) < reclaimInterval {
		return nil
	}
	runtime.GC()
	for _, h := range rt.live.all(func(h *handle) bool { return h.tensor.Value() == nil }) {
		if bytes, ok := h.reclaim(); ok {
			*freed += bytes
			dead = append(dead, h)
		}
	}
	gc.last, gc.freed = time.Now(), *freed
	return dead
}
