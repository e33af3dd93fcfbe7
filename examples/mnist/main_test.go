package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
	"github.com/cistern-ml/cistern/trace/telemetry"
)

// TestBadInput: bad input results in one clear line, exit status 1 and no stack trace.
func TestBadInput(t *testing.T) {
	empty, cut := t.TempDir(), t.TempDir()
	for _, name := range []string{"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"} {
		require.NoError(t, os.WriteFile(filepath.Join(cut, name), []byte{0, 0, 8, 3, 0, 0, 0, 9}, 0o600))
	}
	data := dataOf(t, 128, 10)
	tooSmall := "one picture for each rank takes 2"
	if bits.UintSize < 64 {
		tooSmall = "needs addresses of 64 bits"
	}
	for args, want := range map[string]string{
		"-device cuda:0":                         "no such backend",
		"-device nonsense":                       "no such backend",
		"-capacity 1MiB":                         "out of memory",
		"-capacity 24MiB":                        "out of memory",       // the model fits, the training does not
		"-capacity 27MiB":                        "LinearReLU backward", // the first step
		"-capacity much":                         "not a size",
		"-capacity -5":                           "not a size",
		"-capacity 1GiB -device x":               "only the device host",
		"-model gpt":                             "want mlp, cnn",
		"-optimizer lion":                        "want adam",
		"-trace file":                            "want none, stdout, otlp",
		"-epochs 0":                              "want at least 1",
		"-epochs many":                           "invalid value",
		"-batch 0":                               "want 1 to 60000",
		"-batch 60001":                           "want 1 to 60000",
		"-lr NaN":                                "want a positive number",
		"-lr -1":                                 "want a positive number",
		"-lr Inf":                                "want a positive number",
		"-data " + empty:                         "no train-images-idx3-ubyte",
		"-data " + cut:                           "train-images-idx3-ubyte",
		"-json " + empty + "/no/dir":             "-json: " + empty + "/no/dir can't be written: there is no folder",
		"-save " + empty + "/no/w":               "-save: " + empty + "/no/w can't be written: there is no folder", // before the training
		"-resume " + empty + "/no/r":             "-resume: " + empty + "/no/r can't be written: there is no folder",
		"-save " + empty:                         "is a directory",
		"-save a -json a":                        "a file of its own",
		"-save a -resume a":                      "a file of its own",
		"-resume a -json a":                      "a file of its own",
		"-profile-steps 3":                       "with -memprofile",
		"-profile-steps 3- -memprofile " + empty: "such as 17,100-110",
		"-memprofile " + cut + "/t10k-labels-idx1-ubyte": "-memprofile: mkdir",
		"-steps " + empty + "/no/s":                      "-steps: " + empty + "/no/s can't be written: there is no folder",
		"-steps a -save a":                               "a file of its own",
		"-largest 1GiB":                                  "want -forecast too",
		"-forecast -largest much":                        "not a size",
		"-forecast -largest 1KiB":                        tooSmall,
		"-forecast -largest 0":                           "not a size",
		"-forecast -predict a -load b":                   "want one of them",
		"-forecast -device nonsense":                     "dry:nonsense",
		"-forecast -device dry:cuda?gpu=L5":              "is not in the table",
		"-forecast -json " + empty + "/no/j":             "can't be written",
		"-http nonsense":                                 "-http: listen",
		"-frobnicate":                                    "not defined",
		"train":                                          "flags only",
	} {
		t.Run(args, func(t *testing.T) {
			var out, errs bytes.Buffer
			// The last -data counts.
			require.Equal(t, 1, run(context.Background(), append([]string{"-data", data}, strings.Fields(args)...), &out, &errs))
			require.Contains(t, errs.String(), want)
			require.True(t, strings.HasPrefix(errs.String(), "mnist: "), errs.String())
			require.Equal(t, 1, strings.Count(strings.ReplaceAll(errs.String(), "\n\t", "; "), "\n"), errs.String())
			require.NotContains(t, errs.String(), "goroutine")
		})
	}
}

func TestHelp(t *testing.T) {
	var out, errs bytes.Buffer
	require.Zero(t, run(context.Background(), []string{"-h"}, &out, &errs))
	require.Contains(t, errs.String(), "-optimizer")
}

// stopAfter cancels the run after a number of written lines.
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

// TestInterrupted: an interrupted run ends cleanly with its results so far.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	out := &stopAfter{lines: 1, stop: cancel} // after the first line: before the first step
	file := filepath.Join(t.TempDir(), "r.json")
	var errs bytes.Buffer
	require.Equal(t, 130, run(ctx, []string{"-data", small(t), "-json", file}, out, &errs), errs.String())
	require.Contains(t, out.String(), "interrupted after step 0\n")
	require.Contains(t, out.String(), "MaxMemoryAllocated")
	var r result
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &r))
	require.True(t, r.Interrupted)
	require.Zero(t, r.Epochs)
}

// dataOf returns a folder with a data set of the given number of pictures, which are all alike.
func dataOf(t *testing.T, training, testing int) string {
	dir := t.TempDir()
	for part, n := range map[digits.Split]int{digits.Train: training, digits.Test: testing} {
		writeDigits(t, dir, part, make([]byte, n*digits.Pixels), make([]byte, n))
	}
	return dir
}

// writeDigits writes the two files of a part.
func writeDigits(t *testing.T, dir string, part digits.Split, images, labels []byte) {
	header := func(dims ...uint32) (b []byte) {
		for _, d := range append([]uint32{0x0800 + uint32(len(dims))}, dims...) {
			b = binary.BigEndian.AppendUint32(b, d)
		}
		return b
	}
	n := uint32(len(labels))
	for name, data := range map[string][]byte{
		"-images-idx3-ubyte": append(header(n, digits.Side, digits.Side), images...),
		"-labels-idx1-ubyte": append(header(n), labels...),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, string(part)+name), data, 0o600))
	}
}

// small returns a folder with a data set of 20 pictures for training and 10 for testing.
func small(t *testing.T) string { return dataOf(t, 20, 10) }

// TestInterruptedBetweenEpochs: an epoch without a step has no loss in the results.
func TestInterruptedBetweenEpochs(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	out := &stopAfter{lines: 2, stop: cancel} // the second line is that of the first epoch
	file := filepath.Join(t.TempDir(), "r.json")
	var errs bytes.Buffer
	require.Equal(t, 130, run(ctx, []string{"-data", small(t), "-batch", "10", "-json", file}, out, &errs), errs.String())
	require.Contains(t, out.String(), "interrupted after step 2\n")
	require.NotContains(t, out.String(), "epoch 2/3")
	var r result
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &r))
	require.True(t, r.Interrupted)
	require.Equal(t, 1, r.Epochs)
	require.Len(t, r.Loss, 1)
	require.Equal(t, 1.0, r.TestAccuracy, "all pictures are the same")
}

// TestDivergedTraining: a loss of NaN is null in the results, because JSON has no number for it.
func TestDivergedTraining(t *testing.T) {
	file := filepath.Join(t.TempDir(), "r.json")
	var out, errs bytes.Buffer
	args := []string{"-data", small(t), "-epochs", "1", "-batch", "2", "-optimizer", "sgd", "-lr", "1e38", "-json", file}
	require.Zero(t, run(context.Background(), args, &out, &errs), errs.String())
	require.Contains(t, out.String(), "loss NaN")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Regexp(t, `"loss": \[\s*null\s*\]`, string(text))
}

// TestTraceAndResultsShareTheOutput: spans are exported while the program writes, under the race
// detector.
func TestTraceAndResultsShareTheOutput(t *testing.T) {
	var out bytes.Buffer
	w := &shared{w: &out}
	sdk, err := telemetry.New(t.Context(), telemetry.Config{Exporter: "stdout", Output: w, Service: "mnist"})
	require.NoError(t, err)
	for range 2000 { // a full queue is exported at once, on a goroutine of the SDK's
		_, span := sdk.Start(t.Context(), "x")
		span.End()
		_, err := w.Write([]byte("a line of results\n"))
		require.NoError(t, err)
	}
	sdk.Shutdown(oteltrace.SpanFromContext(t.Context()), nil)
	w.mu.Lock() // on a slow machine the exporter may not be done yet
	defer w.mu.Unlock()
	require.Equal(t, 2000, strings.Count(out.String(), "a line of results\n"))
}

var full = flag.Bool("full", false, "train on all real pictures, not on the first 2,400")

// someOfTheReal returns a folder with the first real pictures: 2,400, and 240 with -short.
func someOfTheReal(t *testing.T) string {
	dir := t.TempDir()
	for part, n := range map[digits.Split]int{digits.Train: rounds(2400, 240), digits.Test: rounds(400, 40)} {
		d, err := digits.Load(t.Context(), "", part)
		require.NoError(t, err)
		writeDigits(t, dir, part, d.Images[:n*digits.Pixels], d.Labels[:n])
	}
	return dir
}

// TestRun trains on real pictures with telemetry: in 60 steps, on all pictures with -full, and in 6
// steps with -short, which suffice for an accuracy far above chance.
func TestRun(t *testing.T) {
	steps, accuracy := rounds(60, 6), 0.8
	if testing.Short() && !*full {
		accuracy = 0.3
	}
	file := filepath.Join(t.TempDir(), "r.json")
	var out, errs bytes.Buffer
	args := []string{"-epochs", "1", "-batch", "1000", "-trace", "stdout", "-json", file, "-optimizer", "adamw"}
	if !*full {
		args = append(args, "-batch", "40", "-data", someOfTheReal(t))
	}
	require.Zero(t, run(context.Background(), args, &out, &errs), errs.String())
	require.Regexp(t, `spans: \d+ made, \d+ sampled out .*, 0 dropped`, errs.String())
	require.Contains(t, out.String(), `"Name":"cistern.step"`)
	require.Contains(t, out.String(), "cistern.device.memory.usage")
	var r result
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &r))
	require.Greater(t, r.TestAccuracy, accuracy)
	require.LessOrEqual(t, r.TestAccuracy, 1.0)
	require.Len(t, r.Loss, 1)
	require.Equal(t, []int{steps, 1}, []int{r.Steps, r.Epochs})
	require.EqualValues(t, steps, r.Memory.Steps)
	require.Positive(t, r.Memory.Mean.H2DBytes)
	require.Equal(t, r.MaxMemoryAllocated, r.Memory.Largest.AllocatedPeak)
}

// TestFailedRunLeavesNoResults: a failed run writes no file of results.
func TestFailedRunLeavesNoResults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "r.json")
	var out, errs bytes.Buffer
	args := []string{"-data", dataOf(t, 128, 10), "-capacity", "27MiB", "-json", file}
	require.Equal(t, 1, run(context.Background(), args, &out, &errs))
	require.Contains(t, out.String(), "steps that failed: 1 of 1")
	require.NoFileExists(t, file)
}
