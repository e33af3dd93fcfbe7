package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOffloadTrainsTheSame: the results are bit-identical with state that moves in each step, also
// when the training continues from a checkpoint.
func TestOffloadTrainsTheSame(t *testing.T) {
	folder, data := t.TempDir(), small(t)
	train := func(file string, args ...string) (weights []byte, out printed) {
		var stdout, stderr bytes.Buffer
		args = append([]string{"-data", data, "-batch", "10", "-trace", "stdout", "-save", filepath.Join(folder, file)}, args...)
		require.Zero(t, run(context.Background(), args, &stdout, &stderr), stderr.String())
		weights, err := os.ReadFile(filepath.Join(folder, file))
		require.NoError(t, err)
		return weights, parse(t, stdout.String(), stderr.String())
	}
	want, _ := train("resident", "-epochs", "2")
	got, out := train("offloaded", "-epochs", "2", "-offload")
	require.Equal(t, want, got)
	require.Positive(t, out.last(t, "cistern.offload.moved", ""))
	require.Positive(t, out.last(t, "cistern.offload.memory.usage", ""))
	kept := filepath.Join(folder, "kept")
	for _, file := range []string{"whole", "resumed"} {
		got, _ = train(file, "-epochs", "2", "-offload", "-resume", kept)
		require.Equal(t, want, got, file)
	}

	var stdout, stderr bytes.Buffer
	require.Equal(t, 1, run(context.Background(), []string{"-graph", "-offload"}, &stdout, &stderr))
	require.Contains(t, stderr.String(), "-graph with -offload")
}
