package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// timelineOf returns the trace.json of a training with the given number of steps, which has all
// steps.
func timelineOf(t *testing.T, steps int, args ...string) []byte {
	t.Helper()
	dir := t.TempDir()
	var out, errs bytes.Buffer
	require.Equal(t, 0, run(context.Background(), append([]string{"-data", dataOf(t, 4*steps, 10), "-batch", "4", "-epochs", "1",
		"-memprofile", dir, "-profile-steps", fmt.Sprintf("1-%d", steps)}, args...), &out, &errs), errs.String())
	text, err := os.ReadFile(filepath.Join(dir, "trace.json"))
	require.NoError(t, err)
	return text
}

// TestTimelineSize: 1,000 steps of the mlp take at most 2 MB compressed.
func TestTimelineSize(t *testing.T) {
	const steps, most = 64, 2000
	text := timelineOf(t, steps)
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err := w.Write(text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.LessOrEqual(t, packed.Len(), steps*most)
	t.Logf("%d bytes a step, %d compressed", len(text)/steps, packed.Len()/steps)
}

// TestTimelineKernels: the products of each layer, in both passes and all steps, are found by the
// arguments of kernels; with -graph each step except the first is one replay that contains them.
func TestTimelineKernels(t *testing.T) {
	type event struct {
		Name, Cat string
		Args      struct {
			Module, Pass, Operation, Operations, Shapes string
			Step                                        int64
		}
	}
	kernels := func(args ...string) (list []event) {
		var events []event
		require.NoError(t, json.Unmarshal(timelineOf(t, 3, args...), &events))
		return slices.DeleteFunc(events, func(e event) bool { return e.Cat != "kernel" || e.Args.Step == 0 })
	}
	products := map[string]int{}
	for _, k := range kernels() {
		require.NotEmpty(t, k.Args.Operation)
		require.NotEmpty(t, k.Args.Shapes)
		if k.Args.Module != "" && k.Args.Operation != "sum" {
			products[fmt.Sprint(k.Args.Module, " ", k.Args.Pass, " ", k.Args.Step)]++
		}
	}
	want := map[string]int{}
	for step := 1; step <= 3; step++ {
		for i, module := range []string{"0 (Linear)", "2 (Linear)", "4 (Linear)"} {
			want[fmt.Sprint(module, " forward ", step)] = 1
			want[fmt.Sprint(module, " backward ", step)] = min(2, 1+i) // the input needs no gradient
		}
	}
	require.Equal(t, want, products)

	replays := map[int64]int{}
	for _, k := range kernels("-graph") {
		if k.Args.Operations != "" {
			require.Contains(t, k.Name, "replay of a graph of ")
			require.Contains(t, k.Args.Operations, "matmul masked 2")
			replays[k.Args.Step]++
		}
	}
	require.Equal(t, []int64{2, 3}, slices.Sorted(maps.Keys(replays)), "the first step is eager")
	for step, n := range replays {
		require.Equal(t, 1, n, "step %d", step)
	}
}
