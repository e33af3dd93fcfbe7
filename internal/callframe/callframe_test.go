package callframe

import (
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func inlined(pcs []uintptr) int { return runtime.Callers(1, pcs) }

//go:noinline
func called(pcs []uintptr) int { return inlined(pcs) }

// TestOf: each counter is one call, also for inlined functions. The root of the goroutine is no
// call, and a call without symbols has the name Unknown.
func TestOf(t *testing.T) {
	var pcs [64]uintptr
	n := called(pcs[:])
	var names []string
	for _, pc := range pcs[:n] {
		if f, ok := Of(pc); ok {
			names = append(names, f.Function)
			require.NotZero(t, f.Line)
			require.NotEmpty(t, filepath.Base(f.File))
		}
	}
	const here = "github.com/cistern-ml/cistern/internal/callframe."
	require.Equal(t, []string{here + "inlined", here + "called", here + "TestOf", "testing.tRunner"}, names)
	require.Len(t, names, n-1)
	f, ok := Of(1)
	require.True(t, ok)
	require.Equal(t, Unknown, f.Function)
}
