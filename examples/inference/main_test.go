package main

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/tensor"
)

func TestMain(m *testing.M) { cisterntest.Main(m) }

// TestRun runs the program, with a file and without.
func TestRun(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(t.Context(), []string{"-n", "5", "-batch", "4"}, &out))
	assert.Regexp(t, `^host on .*: 669706 weights in 6 tensors
5 batches of 4: first .*, then median .*, p99 .*, slowest .*; \d+ requests/s
device memory: 2.6 MiB of weights, peak of .* KiB more during a batch, .* MiB reserved
$`, out.String())

	file := filepath.Join(t.TempDir(), "small.safetensors")
	env, err := tensor.Open("host?capacity=64MiB")
	require.NoError(t, err)
	write(t, env, file, 3, 2)
	require.NoError(t, env.Close())
	out.Reset()
	require.NoError(t, run(t.Context(), []string{"-weights", file, "-n", "1"}, &out))
	assert.Contains(t, out.String(), "8 weights in 2 tensors\n1 batches of 32: ")

	for _, bad := range [][]string{{"-n", "0"}, {"-batch", "-1"}, {"-weights", "nowhere"}, {"-device", "tpu"}, {"-x"}} {
		require.Error(t, run(t.Context(), bad, &out), "%v", bad)
	}
	for lines := range 2 {
		require.ErrorIs(t, run(t.Context(), []string{"-n", "1"}, &failing{lines}), errFull)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, run(ended, []string{"-n", "1"}, &out), context.Canceled)
}

var errFull = errors.New("full")

// failing accepts some writes and fails at the next.
type failing struct{ left int }

func (f *failing) Write(p []byte) (int, error) {
	if f.left--; f.left < 0 {
		return 0, errFull
	}
	return len(p), nil
}

// write writes a file of a random network, whose answers depend on more than the last biases.
func write(t *testing.T, env *tensor.Runtime, file string, widths ...int) (layers []dense) {
	in := nn.Init(t.Context(), env, nn.Seed(1))
	net := randomNetwork(in, widths...)
	require.NoError(t, in.Err())
	for i, p := range net.model.Parameters() {
		require.NoError(t, env.MulScalarInPlace(t.Context(), p.Value(), 4))
		numbers, err := tensor.ToSlice[float32](t.Context(), p.Value(), nil)
		require.NoError(t, err)
		if i%2 == 0 {
			layers = append(layers, dense{weight: numbers})
		} else {
			layers[i/2].bias = numbers
		}
	}
	require.NoError(t, nn.SaveModel(t.Context(), net.model, file))
	require.NoError(t, in.Close())
	return layers
}

// dense is a layer for plain.
type dense struct{ weight, bias []float32 }

// TestClassify compares answers with those of a plain computation, and checks that only the weights
// stay allocated.
func TestClassify(t *testing.T) {
	env, err := tensor.Open("host?capacity=64MiB")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "w.safetensors")
	layers := write(t, env, file, 5, 7, 6, 4)
	in := nn.Init(t.Context(), env)
	net, err := options{weights: file}.network(t.Context(), in)
	require.NoError(t, err)
	require.NoError(t, in.Err())
	before := env.Cache().MemoryAllocated()
	require.Equal(t, 5, net.inputs)
	requests := make([]float32, 40*5)
	for i := range requests {
		requests[i] = float32((i*i*7919)%211)/10 - 10
	}
	seen := make(map[int32]bool)
	var got []int32
	for range 3 {
		got, err = net.classify(t.Context(), requests, got)
		require.NoError(t, err)
		require.Equal(t, before, env.Cache().MemoryAllocated())
		require.Len(t, got, 40)
		for i, class := range got {
			require.Equal(t, plain(layers, requests[5*i:5*i+5]), class, "request %d", i)
			seen[class] = true
		}
	}
	assert.Greater(t, len(seen), 1)
	_, err = net.classify(t.Context(), requests[:7], got)
	require.ErrorIs(t, err, tensor.ErrShape)
	require.Equal(t, before, env.Cache().MemoryAllocated())
	require.NoError(t, in.Close())
	require.NoError(t, env.Close())
}

// plain returns the class of one request.
func plain(layers []dense, x []float32) int32 {
	for i, l := range layers {
		y := slices.Clone(l.bias)
		for r := range y {
			for c, v := range x {
				y[r] += l.weight[r*len(x)+c] * v
			}
			if i < len(layers)-1 {
				y[r] = max(y[r], 0)
			}
		}
		x = y
	}
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return int32(best)
}

// TestWrongNetworks leave nothing allocated on the device.
func TestWrongNetworks(t *testing.T) {
	env, err := tensor.Open("host?capacity=64MiB")
	require.NoError(t, err)
	data := nn.Init(t.Context(), env)
	named := func(name string, shape ...int) safetensors.Named {
		return safetensors.Named{Name: name, Tensor: data.Zeros(shape...).Value()}
	}
	matrix, bias := named("0.weight", 2, 3), named("0.bias", 2)
	require.NoError(t, data.Err())
	for want, tensors := range map[string][]safetensors.Named{
		"the file has no 0.weight":                          {},
		`missing 1 of the model's 2 names: "0.bias"`:        {matrix},
		"0.weight is [2], after 0 outputs":                  {named("0.weight", 2), bias},
		"0.weight is [0 3]":                                 {named("0.weight", 0, 3), named("0.bias", 0)},
		"0.bias: F32 (3), as float32 (2)":                   {matrix, named("0.bias", 3)},
		"2.weight is [2 3], after 2 outputs":                {matrix, bias, named("2.weight", 2, 3), named("2.bias", 2)},
		`unexpected 1 of the source's 3 names: "fc.weight"`: {matrix, bias, named("fc.weight", 2, 3)},
	} {
		var file bytes.Buffer
		require.NoError(t, safetensors.Write(t.Context(), &file, tensors, nil))
		f, err := safetensors.New(bytes.NewReader(file.Bytes()), int64(file.Len()))
		require.NoError(t, err)
		allocated := env.Cache().MemoryAllocated()
		in := nn.Init(t.Context(), env)
		newNetwork(t.Context(), in, f)
		require.ErrorContains(t, in.Err(), want)
		require.Equal(t, allocated, env.Cache().MemoryAllocated(), want)
		require.Equal(t, in.Err(), in.Close())
	}
	require.NoError(t, data.Close())
	require.NoError(t, env.Close())
}
