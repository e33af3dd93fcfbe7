package tensor

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestBFloat16WithoutCopies: what a GPU does in bfloat16 takes memory for its results, and none for copies of its operands in float32.
func TestBFloat16WithoutCopies(t *testing.T) {
	r := newRig(t, 1<<28).scoped()
	if _, loads := r.dev.(device.ModuleLoader); !loads {
		t.Skip("the host computes on copies")
	}
	random := rand.New(rand.NewPCG(3, 3))
	const rows, cols = 96, 128
	x, y := put(r, halves(random, rows*cols, false), rows, cols), put(r, halves(random, rows*cols, false), rows, cols)
	bias := put(r, halves(random, rows, false), rows)
	labels := make([]int32, rows)
	for i := range labels {
		labels[i] = int32(random.IntN(cols))
	}
	l := put(r, labels, rows)
	dloss := put(r, []float32{1})
	for name, run := range map[string]func() (*Tensor, error){
		"MatMul":           func() (*Tensor, error) { return r.MatMul(r.ctx, x, y, TransB) },
		"Linear":           func() (*Tensor, error) { return r.Linear(r.ctx, x, y, bias) },
		"LinearReLU":       func() (*Tensor, error) { return r.LinearReLU(r.ctx, x, y, bias) },
		"Transpose":        func() (*Tensor, error) { return r.Transpose(r.ctx, x) },
		"Exp":              func() (*Tensor, error) { return r.Exp(r.ctx, x) },
		"Softmax":          func() (*Tensor, error) { return r.Softmax(r.ctx, x, 1) },
		"CrossEntropy":     func() (*Tensor, error) { return r.CrossEntropy(r.ctx, x, l) },
		"CrossEntropyGrad": func() (*Tensor, error) { return r.CrossEntropyGrad(r.ctx, nil, x, l, dloss) },
	} {
		first, err := run() // and what lasts
		require.NoError(t, err, name)
		before := r.cache.MemoryAllocated()
		r.cache.ResetPeakStats()
		second, err := run()
		require.NoError(t, err, name)
		assert.LessOrEqual(t, r.cache.MaxMemoryAllocated()-before, second.Bytes()+4<<10, name)
		require.NoError(t, first.Release())
		require.NoError(t, second.Release())
	}
}
