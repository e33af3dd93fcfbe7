package describe

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// TestCallString: results come first, memory without a tensor is described by its number of
// elements, and a list by its first item.
func TestCallString(t *testing.T) {
	var pool backend.Pool
	of := func(d backend.Dtype, bytes int64) backend.Ref { return backend.Ref{Ptr: 8, Bytes: bytes, Dtype: d} }
	c := pool.New(backend.Add, backend.Float32)
	for _, r := range []backend.Ref{of(backend.Float32, 24), of(backend.Float32, 4), of(backend.Float32, 24)} {
		c.Add(r)
	}
	assert.Equal(t, "float32[6] = float32[1], float32[6]", (*Call)(c).String(), "no shapes are known")
	c.Shapes = [][]int{{2, 3}, {}}
	assert.Equal(t, "float32[2,3] = float32[], float32[6]", (*Call)(c).String())
	c.Args[1] = backend.Ref{} // an optional operand that is absent
	assert.Equal(t, "float32[2,3] = float32[6]", (*Call)(c).String())

	norm := pool.New(backend.Norm, backend.BFloat16)
	norm.SetList(backend.List{Stride: 2, Refs: []backend.Ref{of(backend.BFloat16, 8), of(backend.Float64, 8), of(backend.BFloat16, 2), of(backend.Float64, 8)}})
	norm.Shapes = [][]int{{2, 2}}
	assert.Equal(t, "float64[1] = bfloat16[2,2], the first of 2", (*Call)(norm).String())
	assert.Equal(t, "float64[1] = bfloat16[2,2], the first of 2; float32[2,3] = float32[6]", Calls{norm, c}.String())
}

// TestGraph: the most frequent operations come first, and operations of equal number are sorted by
// name.
func TestGraph(t *testing.T) {
	g := NewGraph(7, map[string]int{"sum": 1, "add": 1, "matmul": 5})
	assert.Equal(t, "replay of a graph of 7 nodes", g.Name)
	assert.Equal(t, "matmul 5, add 1, sum 1", g.String())
	assert.Empty(t, NewGraph(0, nil).String())
}
