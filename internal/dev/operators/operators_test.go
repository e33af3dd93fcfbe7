package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The program's tests pass, and check neither the sum in Sum nor Never.
const program = `package p

func Sum(a []float32, from uint8) (sum float32) {
	i := from
	for i < uint8(len(a)) && (!(a[i] < 0) || -a[i] > 9) {
		sum += a[i]*2 - 1
		i++
	}
	return sum
}

func Shift[T ~int | ~uint8](x T, n uint) T { return x << n &^ 1 }

func Never(a, b int) bool { return a == b }
`

const programTest = `package p

import "testing"

func TestShift(t *testing.T) {
	Sum([]float32{1, 2}, 0)
	if Shift(3, 1) != 6 || Shift(uint8(255), 1) != 254 {
		t.Fatal("shift")
	}
}
`

// TestOperators: each operator of a program is found, the code compiles with all of them, and the
// program's test kills those that it checks.
func TestOperators(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module p\n\ngo 1.26\n", "p.go": program, "p_test.go": programTest} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	t.Chdir(dir)
	all, err := list(t.Context(), []string{"."})
	require.NoError(t, err)
	exports := map[string]string{}
	for _, p := range all {
		exports[p.ImportPath] = p.Export
	}
	s, err := all[len(all)-1].build(t.Context(), dir, exports, draw{n: 1000, seed: "1"})
	require.NoError(t, err)
	var changes []string
	for _, o := range s.Operators {
		changes = append(changes, o.Change)
	}
	require.Len(t, changes, 14, "%v", changes)

	r := &runs{suite: s, binary: filepath.Join(dir, s.binary())}
	require.NoError(t, r.clean(t.Context(), 1))
	require.Len(t, r.reached, 11, "all but those of Never and of what follows a true operand")
	killed := map[string]string{}
	for _, id := range r.reached {
		killed[s.Operators[id-1].Change] = r.kill(t.Context(), id)
	}
	require.Equal(t, "TestShift", killed["<< becomes >>"])
	require.Equal(t, "TestShift", killed["&^ becomes &"])
	require.Empty(t, killed["* becomes /"])
}
