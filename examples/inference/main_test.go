package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRun is the program, with a file and without.
func TestRun(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(t.Context(), []string{"-n", "5", "-batch", "4"}, &out))
	assert.Regexp(t, `^host on .*: 669706 weights in 6 tensors
5 batches of 4: first .*, then median .*, p99 .*, slowest .*; \d+ requests/s
device memory: 2.6 MiB of weights, .* KiB at most during a batch, .* MiB reserved
$`, out.String())

	file := filepath.Join(t.TempDir(), "small.safetensors")
	require.NoError(t, writeFile(file, randomWeights(3, 2)))
	out.Reset()
	require.NoError(t, run(t.Context(), []string{"-weights", file, "-n", "1"}, &out))
	assert.Contains(t, out.String(), "8 weights in 2 tensors\n1 batches of 32: ")

	for _, bad := range [][]string{{"-n", "0"}, {"-batch", "-1"}, {"-weights", "nowhere"}, {"-device", "tpu"}, {"-x"}} {
		require.Error(t, run(t.Context(), bad, &out), "%v", bad)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, run(ended, []string{"-n", "1"}, &out), context.Canceled)
}

// TestClassify compares answers with those of a plain computation, and leaves nothing but the weights.
func TestClassify(t *testing.T) {
	weights := randomWeights(5, 7, 6, 4)
	for _, w := range weights {
		for i := range w.data {
			w.data[i] *= 4 // or the last biases decide alone
		}
	}
	env, err := tensor.Open("host?capacity=64MiB")
	require.NoError(t, err)
	in := autograd.Init(t.Context(), env)
	net := newNetwork(in, weights)
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
			require.Equal(t, plain(weights, requests[5*i:5*i+5]), class, "request %d", i)
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

// plain is the class of one request.
func plain(weights map[string]weight, x []float32) int32 {
	for i := 0; ; i += 2 {
		w, ok := weights[name(i, "weight")]
		if !ok {
			break
		}
		y := append([]float32(nil), weights[name(i, "bias")].data...)
		for r := range y {
			for c, v := range x {
				y[r] += w.data[r*len(x)+c] * v
			}
			if _, last := weights[name(i+2, "weight")]; last {
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

func name(i int, of string) string { return string(rune('0'+i)) + "." + of }

// TestFiles that were written are read, and wrong ones are errors that say what is wrong.
func TestFiles(t *testing.T) {
	weights := randomWeights(3, 2, 4)
	var file bytes.Buffer
	require.NoError(t, writeWeights(&file, weights))
	whole := file.Bytes()
	got, err := readWeights(bytes.NewReader(whole))
	require.NoError(t, err)
	require.Equal(t, weights, got)
	for n := range whole {
		_, err := readWeights(bytes.NewReader(whole[:n]))
		require.Error(t, err, "%d of %d bytes", n, len(whole))
	}

	good := entry{"F32", []int{2}, [2]int64{0, 8}}
	for want, header := range map[string]any{
		`"w": dtype "F16": want F32`:         map[string]any{"w": entry{"F16", []int{2}, [2]int64{0, 4}}},
		`"w": shape [0]`:                     map[string]any{"w": entry{"F32", []int{0}, [2]int64{0, 0}}},
		`"w": shape [65536 65536]`:           map[string]any{"w": entry{"F32", []int{1 << 16, 1 << 16}, [2]int64{0, 8}}},
		`"w": bytes 0 to 12 of 8`:            map[string]any{"w": entry{"F32", []int{3}, [2]int64{0, 12}}},
		`"w": bytes -8 to 0 of 8`:            map[string]any{"w": entry{"F32", []int{2}, [2]int64{-8, 0}}},
		`"w": bytes 8 to 0 of 8`:             map[string]any{"w": entry{"F32", []int{2}, [2]int64{8, 0}}},
		`"w": bytes 0 to 8 of 8: want 4`:     map[string]any{"w": entry{"F32", []int{1}, [2]int64{0, 8}}},
		`"w": json: cannot unmarshal`:        map[string]any{"w": 3},
		"the header: json: cannot unmarshal": []int{1},
		"":                                   map[string]any{"__metadata__": map[string]string{"format": "pt"}, "w": good},
	} {
		text, err := json.Marshal(header)
		require.NoError(t, err)
		_, err = readWeights(bytes.NewReader(append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), make([]byte, 8)...)))
		if want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
	_, err = readWeights(bytes.NewReader(binary.LittleEndian.AppendUint64(nil, 1<<40)))
	require.ErrorContains(t, err, "a header of 1099511627776 bytes")
}

// TestWrongNetworks leave nothing on the device.
func TestWrongNetworks(t *testing.T) {
	env, err := tensor.Open("host?capacity=64MiB")
	require.NoError(t, err)
	matrix, vector := weight{[]int{2, 3}, make([]float32, 6)}, weight{[]int{2}, make([]float32, 2)}
	for name, weights := range map[string]map[string]weight{
		"no weights":             {},
		"no bias":                {"0.weight": matrix},
		"no matrix":              {"0.weight": vector, "0.bias": vector},
		"a bias too long":        {"0.weight": matrix, "0.bias": {[]int{3}, make([]float32, 3)}},
		"layers that do not fit": {"0.weight": matrix, "0.bias": vector, "2.weight": matrix, "2.bias": vector},
		"other names":            {"fc.weight": matrix, "fc.bias": vector},
	} {
		in := autograd.Init(t.Context(), env)
		newNetwork(in, weights)
		require.Error(t, in.Err(), name)
		require.Zero(t, env.Cache().MemoryAllocated(), name)
		require.Equal(t, in.Err(), in.Close())
	}
	require.NoError(t, env.Close())
}
