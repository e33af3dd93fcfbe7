package gpuop

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// TestCrossEntropyRows: a short row, and each of many rows that are not too long, has a warp. Any
// other row has a block.
func TestCrossEntropyRows(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		dtype      backend.Dtype
		rows, cols int
		block      bool
		grids      [2]uint32 // of the loss and of the gradient
		threads    uint32    // of the gradient
	}{
		{backend.Float32, 100, 256, false, [2]uint32{13, 13}, 256},
		{backend.Float32, 8, 50257, true, [2]uint32{8, 8}, 512},
		{backend.Float32, 527, 8192, true, [2]uint32{527, 527}, 512},
		{backend.Float32, 528, 8192, true, [2]uint32{528, 528}, 256},
		{backend.Float32, 2047, 8192, true, [2]uint32{2047, 2047}, 256},
		{backend.Float32, 2048, 8192, false, [2]uint32{256, 256}, 256},
		{backend.Float32, 2048, 8193, true, [2]uint32{2048, 2048}, 256},
		{backend.BFloat16, 2048, 50257, false, [2]uint32{256, 256}, 256},
		{backend.BFloat16, 2047, 50257, true, [2]uint32{2047, 2047}, 512},
	} {
		for i, op := range []backend.Op{backend.CrossEntropy, backend.CrossEntropyGrad} {
			logits, labels := memory(1<<12, c.dtype, c.rows*c.cols), memory(1<<12, backend.Int32, c.rows)
			one := memory(1<<12, backend.Float32, 1)
			call := r.NewCall(op, c.dtype)
			call.Narrow = c.dtype == backend.BFloat16
			operands, name := []backend.Ref{one, logits, labels, {}, one}, "cross_entropy"
			if op == backend.CrossEntropyGrad {
				operands, name = []backend.Ref{logits, logits, labels, {}, one, {}}, "cross_entropy_grad"
			}
			for _, o := range operands {
				call.Add(o)
			}
			backend.SetParams(call, plan.Entropy{Rows: plan.Rows{Cols: c.cols, Inner: 1}, Ignore: -100})
			r.all = nil
			require.NoError(t, r.Do(t.Context(), call))
			require.Len(t, r.all, 1)
			if c.block {
				name += "_block"
			}
			threads := uint32(256)
			if i == 1 {
				threads = c.threads
			}
			want := device.Launch{Kernel: name + "_i32_" + map[backend.Dtype]string{backend.Float32: "f32", backend.BFloat16: "bf16"}[c.dtype]}
			want.Grid, want.Block = [3]uint32{c.grids[i], 1, 1}, [3]uint32{threads, 1, 1}
			got := device.Launch{Kernel: r.all[0].Kernel, Grid: r.all[0].Grid, Block: r.all[0].Block}
			assert.Equal(t, want, got, "%+v", c)
		}
	}
}
