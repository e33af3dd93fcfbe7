package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRun: the network learns the nonlinear part, and does not change a linear function with noise.
func TestRun(t *testing.T) {
	var out strings.Builder
	network, linear, err := run(t.Context(), "host", friedman(600), &out)
	require.NoError(t, err)
	require.Less(t, network, 0.6*linear, out.String())

	r := rand.New(rand.NewPCG(1, 2))
	text := "a,b,one,b again" + strings.Repeat(",noise", 8) + ",y\n"
	for range 500 {
		a, b := 50+10*r.NormFloat64(), r.Float64()
		text += fmt.Sprintf("%g,%g,1,%g,", a, b, b)
		for range 8 {
			text += fmt.Sprintf("%g,", r.NormFloat64())
		}
		text += fmt.Sprintf("%g\n", 3*a-20*b+2*r.NormFloat64())
	}
	rows, err := read(write(t, text))
	require.NoError(t, err)
	network, linear, err = run(t.Context(), "host", rows, &out)
	require.NoError(t, err)
	require.InDelta(t, 2, linear, 0.2, "the noise")
	require.LessOrEqual(t, network, 1.001*linear, out.String())
	t.Log(out.String())
}

// TestErrors: an error names the row and the column.
func TestErrors(t *testing.T) {
	_, err := read(write(t, "a,b\n1,2\n"))
	require.ErrorContains(t, err, "has 2 lines: want a header and at least 100 rows")
	_, err = read(write(t, "a,b\n"+strings.Repeat("1,2\n", 100)+"1,high\n"))
	require.ErrorContains(t, err, `row 101, b: "high", want a number`)
	_, err = read(write(t, "a,b\n1\n"))
	require.ErrorContains(t, err, "record on line 2: wrong number of fields")
	_, _, err = run(t.Context(), "toaster", friedman(100), nil)
	require.ErrorContains(t, err, "toaster")
}

func write(t *testing.T, text string) (path string) {
	path = filepath.Join(t.TempDir(), "table.csv")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}
