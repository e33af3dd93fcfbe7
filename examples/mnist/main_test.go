package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBadInput: one clear line, exit status 1, and no stack trace.
func TestBadInput(t *testing.T) {
	empty, cut := t.TempDir(), t.TempDir()
	for _, name := range []string{"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"} {
		require.NoError(t, os.WriteFile(filepath.Join(cut, name), []byte{0, 0, 8, 3, 0, 0, 0, 9}, 0o600))
	}
	for args, want := range map[string]string{
		"-device cuda:0":             "no such backend",
		"-device nonsense":           "no such backend",
		"-capacity 1MiB":             "out of memory",
		"-capacity 24MiB":            "out of memory", // the model fits, the training does not
		"-capacity much":             "not a size",
		"-capacity -5":               "not a size",
		"-capacity 1GiB -device x":   "only the device host",
		"-model cnn":                 "want mlp",
		"-optimizer lion":            "want adam",
		"-trace file":                "want none, stdout, otlp",
		"-epochs 0":                  "want at least 1",
		"-epochs many":               "invalid value",
		"-batch 0":                   "want 1 to 60000",
		"-batch 60001":               "want 1 to 60000",
		"-lr NaN":                    "want a positive number",
		"-lr -1":                     "want a positive number",
		"-lr Inf":                    "want a positive number",
		"-data " + empty:             "no train-images-idx3-ubyte",
		"-data " + cut:               "train-images-idx3-ubyte",
		"-json " + empty + "/no/dir": "no such file",
		"-frobnicate":                "not defined",
		"train":                      "flags only",
	} {
		t.Run(args, func(t *testing.T) {
			var out, errs bytes.Buffer
			require.Equal(t, 1, run(context.Background(), strings.Fields(args), &out, &errs))
			require.Contains(t, errs.String(), want)
			require.Equal(t, 1, strings.Count(errs.String(), "mnist: "), errs.String())
			require.NotContains(t, errs.String(), "goroutine")
		})
	}
}

func TestHelp(t *testing.T) {
	var out, errs bytes.Buffer
	require.Zero(t, run(context.Background(), []string{"-h"}, &out, &errs))
	require.Contains(t, errs.String(), "-optimizer")
}

// stopAfter cancels the run when it has written so many lines.
type stopAfter struct {
	bytes.Buffer
	lines int
	stop  func()
}

func (s *stopAfter) Write(p []byte) (int, error) {
	if s.lines -= bytes.Count(p, []byte("\n")); s.lines <= 0 {
		s.stop()
	}
	return s.Buffer.Write(p)
}

// TestInterrupted ends cleanly with what there is.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	out := &stopAfter{lines: 1, stop: cancel} // after the first line: before the first step
	file := filepath.Join(t.TempDir(), "r.json")
	var errs bytes.Buffer
	require.Zero(t, run(ctx, []string{"-json", file}, out, &errs), errs.String())
	require.Contains(t, out.String(), "interrupted")
	require.Contains(t, out.String(), "MaxMemoryAllocated")
	var r result
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &r))
	require.True(t, r.Interrupted)
	require.Zero(t, r.Epochs)
}

// TestRun trains for real, in big steps, with the telemetry on.
func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "r.json")
	var out, errs bytes.Buffer
	args := []string{"-epochs", "1", "-batch", "2000", "-trace", "stdout", "-json", file, "-optimizer", "adamw"}
	require.Zero(t, run(context.Background(), args, &out, &errs), errs.String())
	require.Regexp(t, `spans: \d+ made, \d+ sampled out .*, 0 dropped`, out.String())
	require.Contains(t, out.String(), `"Name":"step"`)
	require.Contains(t, out.String(), "cistern.device.memory.usage")
	var r result
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &r))
	require.Greater(t, r.TestAccuracy, 0.8)
	require.LessOrEqual(t, r.TestAccuracy, 1.0)
	require.Len(t, r.Loss, 1)
	require.Equal(t, []int{30, 1}, []int{r.Steps, r.Epochs})
	require.EqualValues(t, 30, r.Memory.Steps)
	require.Positive(t, r.Memory.Mean.H2DBytes)
	require.Equal(t, r.MaxMemoryAllocated, r.Memory.Largest.AllocatedPeak)
}
