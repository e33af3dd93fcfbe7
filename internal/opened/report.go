package opened

import (
	"fmt"
	"runtime"
	"strings"
)

// Left is a handle that was still open when its device or cache was closed, or a device, cache or
// task that was not closed.
type Left struct {
	Kind  Kind   // if not Never
	Never bool   // a device, cache or task was not closed
	of    string // such as "host device"
	site  site
}

// Take returns and removes the remaining records of the device with that ID, 0: of all devices.
func Take(device uint64) (left []Left) {
	for {
		l := takeOf(device)
		if l == nil {
			return left
		}
		left = append(left, l.left()...)
	}
}

// Excuse drops the remaining records of the device with that ID, and ignores what it opens later.
func Excuse(device uint64) {
	for l := takeOf(device); l != nil; l = takeOf(device) {
		l.Close(true)
	}
}

func takeOf(device uint64) *Ledger {
	return take(func(l *Ledger) bool { return device == 0 || l.device == device })
}

func (l *Ledger) left() (left []Left) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		return []Left{{Never: true, of: l.what, site: l.made}}
	}
	for _, e := range l.open {
		left = append(left, Left{Kind: e.kind, of: l.what, site: e.opened})
	}
	return left
}

const module = "github.com/cistern-ml/cistern/"

// within lists the function prefixes of frames between the opener and the ledger.
var within = []string{module + "internal/opened.", module + "device.", module + "device/host.",
	module + "device/null.", module + "device/cuda.", module + "memcache.(*Cache).On", module + "memcache.New",
	module + "trace.(*Profiler).StartStep", module + "internal/dev/cisterntest/failtest.(", "reflect."}

// frames returns the callers, the innermost first, from the first one that is not within a device.
func (s site) frames() []runtime.Frame {
	var out []runtime.Frame
	for all := runtime.CallersFrames(s.pcs[:s.n]); ; {
		f, more := all.Next()
		inside := false
		for _, p := range within {
			inside = inside || strings.HasPrefix(f.Function, p) && !strings.HasSuffix(f.File, "_test.go")
		}
		if f.PC != 0 && (!inside || out != nil) {
			out = append(out, f)
		}
		if !more {
			return out
		}
	}
}

// Cache reports whether l is a cache that was not closed.
func (l Left) Cache() bool { return l.Never && l.of == "cache" }

// ByTest reports whether a test's own code opened l: a file _test.go, or a package of tests below
// internal/dev.
func (l Left) ByTest() bool {
	f := l.site.frames()
	return len(f) > 0 && ofTest(f[0])
}

func ofTest(f runtime.Frame) bool {
	return strings.HasSuffix(f.File, "_test.go") || strings.HasPrefix(f.Function, module+"internal/dev/") ||
		strings.HasPrefix(f.Function, module+"device/devicetest.")
}

// String names the handle, the place that opened it, and the test's place among its callers.
func (l Left) String() string {
	var b strings.Builder
	if l.Never {
		fmt.Fprintf(&b, "%s was never closed; it was opened at ", l.of)
	} else {
		fmt.Fprintf(&b, "%s of the %s was left open; it was opened at ", l.Kind, l.of)
	}
	f := l.site.frames()
	if len(f) == 0 {
		return b.String() + "an unknown place"
	}
	fmt.Fprintf(&b, "%s:%d", f[0].File, f[0].Line)
	for _, outer := range f[1:] {
		if !strings.HasSuffix(f[0].File, "_test.go") && strings.HasSuffix(outer.File, "_test.go") {
			fmt.Fprintf(&b, " for %s:%d", outer.File, outer.Line)
			break
		}
	}
	return b.String()
}
