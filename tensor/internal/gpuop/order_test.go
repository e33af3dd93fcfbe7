package gpuop

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// TestFirstsOfARow: to keep few elements, runs of a row leave few. Scratch memory is a small part
// of what a whole sort needs.
func TestFirstsOfARow(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		cols, keep int
		scratch    int64
		launches   int // with the copy of the positions
	}{
		{2048, 2048, 2048 * 8, 2},
		{1000, 5, 5 * 8, 2},
		{50_257, 50, (24*50 + 50 + 50) * 8, 3},
		{1_000_000, 1000, (488*1000 + 576 + 239*1000) * 8, 11},
		{70_000, 1024, (34*1024 + 368 + 17*1024 + 368) * 8, 8},
		{70_000, 1025, 2 * 70_000 * 8, 8},
	} {
		call := r.NewCall(backend.Sort, backend.Float32)
		call.Add(memory(1<<12, backend.Int32, 3*c.keep))
		call.Add(memory(1<<32, backend.Float32, 3*c.cols))
		backend.SetParams(call, plan.Order{Rows: plan.Rows{Cols: c.cols, Inner: 1}, Keep: c.keep})
		r.all, r.scratch = nil, 0
		require.NoError(t, r.Do(t.Context(), call))
		assert.Equal(t, 3*c.scratch, r.scratch, "%d of %d", c.keep, c.cols)
		assert.Len(t, r.all, c.launches, "%d of %d", c.keep, c.cols)
	}
}

// TestIndicesOfColumns: an index with one element along the axis needs no scratch memory in a
// scatter.
func TestIndicesOfColumns(t *testing.T) {
	r := newRig(t)
	for length, scratch := range map[int]int64{1: 0, 2: 4 * 1000} {
		call := r.NewCall(backend.Scatter, backend.Float32)
		for range backend.Scatter.Roles() {
			call.Add(memory(1<<12, backend.Float32, 1000))
		}
		call.Plan = &plan.Gather{Columns: plan.NewPlacement([]int{10}, []int{1}, []int{1}), Length: length, IndexStride: 1, Rows: 100, XStride: 1}
		r.scratch = 0
		require.NoError(t, r.Do(t.Context(), call))
		assert.Equal(t, scratch, r.scratch, "%d indices of a column", length)
	}
}
