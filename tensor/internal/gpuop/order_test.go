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

// TestFewLongRows: a GPU is filled by parts of a long row, and many rows are not cut.
func TestFewLongRows(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		op       backend.Op
		rows     int
		blocks   int // of the first launch
		launches int
	}{
		{backend.ArgMax, 1, 256, 1},
		{backend.ArgMin, 8, 32 * 8, 1},
		{backend.ArgMax, 1024, 1024, 1},
		{backend.Amax, 1, 122, 1},
		{backend.Amin, 1024, 1024, 1},
		{backend.CumSum, 1, 256, 2},
		{backend.CumSum, 1024, 1024, 1},
	} {
		const cols = 500_000 // 1,024 rows have fewer bytes than 2^31, for 32 bits
		call := r.NewCall(c.op, backend.Float32)
		call.Add(memory(1<<12, backend.Int32, c.rows))
		call.Add(memory(1<<40, backend.Float32, c.rows*cols))
		if c.op == backend.Amax || c.op == backend.Amin {
			call.Plan = &plan.Reduction{}
		} else {
			backend.SetParams(call, plan.Rows{Cols: cols, Inner: 1})
		}
		r.all = nil
		require.NoError(t, r.Do(t.Context(), call), "%v of %d rows", c.op, c.rows)
		require.Len(t, r.all, c.launches, "%v of %d rows", c.op, c.rows)
		assert.EqualValues(t, c.blocks, r.all[0].Grid[0], "%v of %d rows", c.op, c.rows)
	}
}

// TestGradientsOfIndices: the gradient of a gather sorts the index in runs, which it merges, and
// adds in one launch, with a thread for each index.
func TestGradientsOfIndices(t *testing.T) {
	r := newRig(t)
	for n, launches := range map[int]int{2048: 2, 2049: 3, 10_000: 5} {
		call := r.NewCall(backend.GatherGrad, backend.Float32)
		for range backend.GatherGrad.Roles() {
			call.Add(memory(1<<12, backend.Float32, n))
		}
		call.Plan = &plan.Gather{Columns: plan.NewPlacement([]int{1}, []int{1}, []int{1}), Length: n, IndexStride: 1, Rows: n, XStride: 1}
		r.all, r.scratch = nil, 0
		require.NoError(t, r.Do(t.Context(), call))
		assert.Len(t, r.all, launches, "%d indices", n)
		scratch := int64(8 * n)
		if n > 2048 {
			scratch *= 2
		}
		assert.Equal(t, scratch, r.scratch, "%d indices", n)
		last := r.all[len(r.all)-1]
		assert.GreaterOrEqual(t, int(last.Grid[0]*last.Block[0]), n)
	}
}
