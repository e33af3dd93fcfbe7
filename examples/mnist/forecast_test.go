package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/forecast"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
	"github.com/cistern-ml/cistern/examples/mnist/internal/models"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/forecasttest"
	"github.com/cistern-ml/cistern/tensor"
)

// digits is a model of the example with pictures of zeros.
func task(name string) forecasttest.Task {
	return forecasttest.Task{
		Model: func(in *nn.Initializer, h forecasttest.How, off *tensor.Offloader) nn.Layer {
			return h.Wrapped(models.Recipes[name].Model(in), off)
		},
		Data: func(in *nn.Initializer, batch int) (x, y *tensor.Tensor) {
			return in.Zeros(batch, digits.Pixels).Value(), in.Labels(make([]int, batch), digits.Classes)
		},
	}
}

func TestModelsAreForeseen(t *testing.T) {
	batches := []int{1, 17, 32}
	if testing.Short() {
		batches = batches[1:2]
	}
	for _, name := range models.Names {
		for _, h := range forecasttest.Ways {
			for _, batch := range batches {
				forecasttest.RequireForeseen(t, task(name), h, batch, fmt.Sprintf("%s, %s, batch %d", name, h.Name, batch))
			}
		}
	}
}

// TestModelsAreForeseenOnDevice is TestModelsAreForeseen on a GPU.
func TestModelsAreForeseenOnDevice(t *testing.T) {
	for _, name := range models.Names {
		for _, h := range forecasttest.Ways {
			for _, batch := range []int{1, 17, 128} {
				forecasttest.RequireForeseenOnDevice(t, task(name), h, batch, fmt.Sprintf("%s, %s, batch %d", name, h.Name, batch))
			}
		}
	}
}

// TestMemory compares the memory of each model on an H200, with 128 pictures, with its budget.
// Workspaces of the host device depend on the processor.
func TestMemory(t *testing.T) {
	for _, name := range models.Names {
		t.Run(name, func(t *testing.T) {
			forecasttest.RequireMemory(t, "dry:cuda?gpu=H200", "testdata/memory/"+name+".txt", task(name).Program(forecasttest.Plain, 128))
		})
	}
}

// TestAllPicturesAreForeseen: a step of the CNN on all pictures at once.
func TestAllPicturesAreForeseen(t *testing.T) {
	forecasttest.SkipBits32(t)
	began := time.Now()
	f, err := forecast.Step(context.Background(), "dry:cuda?gpu=H200", task("cnn").Program(forecasttest.Plain, maxBatch))
	require.NoError(t, err)
	t.Logf("%v, %d bytes reserved, fits: %v", time.Since(began), f.ReservedPeak, f.Fits)
	require.Greater(t, f.AllocatedPeak, int64(maxBatch)*32*26*26*4, "the first convolution's result")
	require.Less(t, time.Since(began), time.Minute)
}

// peaksOf runs the program and returns the peaks of its results.
func peaksOf(t *testing.T, args ...string) foreseen {
	t.Helper()
	file := filepath.Join(t.TempDir(), "json")
	var out, errs bytes.Buffer
	require.Zero(t, run(t.Context(), append(args, "-json", file), &out, &errs), errs.String())
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var f foreseen
	require.NoError(t, json.Unmarshal(text, &f))
	require.Positive(t, f.MaxMemoryAllocated)
	return f
}

// TestForecastOfRun: a run reports the peaks that -forecast printed, also with smaller last batches
// and with tests between the epochs.
func TestForecastOfRun(t *testing.T) {
	forecasttest.SkipBits32(t)
	data := dataOf(t, 150, 70)
	ways := []string{"", "-bfloat16", "-graph", "-ranks 2", "-ranks 2 -shard state", "-ranks 2 -shard gradients -graph", "-optimizer momentum -batch 150", "-batch 60"}
	some := models.Names
	if testing.Short() {
		some = []string{anyModel()}
	}
	for _, model := range some {
		for _, way := range ways {
			args := append(strings.Fields(way), "-model", model, "-data", data, "-epochs", "2")
			if !slices.Contains(args, "-batch") {
				args = append(args, "-batch", "32")
			}
			foreseen, measured := peaksOf(t, append(args, "-forecast")...), peaksOf(t, args...)
			require.Equal(t, measured.MaxMemoryAllocated, foreseen.MaxMemoryAllocated, "%s %s", model, way)
			require.Equal(t, measured.MaxMemoryReserved, foreseen.MaxMemoryReserved, "%s %s", model, way)
			require.Equal(t, measured.Batch, foreseen.Batch)
			require.Equal(t, measured.Ranks, foreseen.Ranks)
		}
	}
}

// TestForecastDoesNotFit: a forecast with the flags of an advice has the figures of that advice.
func TestForecastDoesNotFit(t *testing.T) {
	forecasttest.SkipBits32(t)
	data := dataOf(t, 600, 10)
	args := []string{"-forecast", "-data", data, "-batch", "512", "-epochs", "1", "-model", "cnn"}
	whole := peaksOf(t, args...)
	require.Empty(t, whole.Forecast.Advice)
	small := fmt.Sprintf("dry:host?capacity=%d", whole.MaxMemoryReserved*3/4)
	tight := peaksOf(t, append(args, "-device", small)...)
	require.False(t, tight.Forecast.Fits)
	require.Equal(t, whole.MaxMemoryAllocated, tight.MaxMemoryAllocated)
	var names []string
	for _, a := range tight.Forecast.Advice {
		names = append(names, strings.Fields(a.Name)[0])
		followed := peaksOf(t, append(append(args, "-device", small), strings.Fields(a.Name)...)...)
		require.Equal(t, a.Fits, followed.Forecast.Fits, a.Name)
		require.Equal(t, a.AllocatedPeak, followed.MaxMemoryAllocated, a.Name)
		require.Equal(t, a.ReservedPeak, followed.MaxMemoryReserved, a.Name)
	}
	require.Equal(t, []string{"-bfloat16", "-offload", "-batch"}, names)
	largest := tight.Forecast.Advice[2]
	require.True(t, largest.Fits)
	found := peaksOf(t, append(args, "-largest", fmt.Sprint(tight.Forecast.Capacity))...)
	require.Equal(t, fmt.Sprint("-batch ", found.Batch), largest.Name)
	more := peaksOf(t, append(args, "-device", small, "-batch", fmt.Sprint(found.Batch+1))...)
	require.False(t, more.Forecast.Fits)
}

// TestDryName: the device of a forecast has the capacity of the run's device.
func TestDryName(t *testing.T) {
	for _, c := range []struct {
		o    options
		want string
	}{
		{options{device: "host", ranks: 1, memory: 24 << 30}, "dry:host"},
		{options{device: "host", ranks: 32, memory: 24 << 30}, "dry:host?capacity=402653184"},
		{options{device: "host", ranks: 2, capacity: "1GiB", memory: 24 << 30}, "dry:host?capacity=1GiB"},
		{options{device: "cuda", ranks: 4}, "dry:cuda"},
		{options{device: "cuda:3", ranks: 1}, "dry:cuda"},
		{options{device: "dry:cuda?gpu=L4", ranks: 4}, "dry:cuda?gpu=L4"},
	} {
		require.Equal(t, c.want, c.o.dryName(), "%+v", c.o)
	}
}
