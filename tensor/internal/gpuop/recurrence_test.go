package gpuop

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// passCall returns a call of a pass or its gradient, with weights at an address.
func (r *rig) passCall(op backend.Op, d backend.Dtype, p plan.Recurrence, weight device.Ptr) *backend.Call {
	c := r.NewCall(op, d)
	for i := range op.Roles() {
		at := device.Ptr(1+i) << 12
		if op.Family() == backend.Recurrence && i == 1 || op.Family() == backend.RecurrenceGrad && i == 7 {
			at = weight
		}
		c.Add(memory(at, d, p.Steps*p.Batch*p.Size))
	}
	backend.SetParams(c, p)
	return c
}

// TestEditionsOfAPass: a pass is one launch if all weights fit into a block's registers and shared
// memory. Otherwise it is not supported.
func TestEditionsOfAPass(t *testing.T) {
	r := newRig(t)
	old := newRig(t)
	old.hasMatrixUnits = func() bool { return false }
	const f32 = backend.Float32
	for _, op := range append(backend.Recurrence.All(), backend.RecurrenceGrad.All()...) {
		for _, c := range []struct {
			on          *rig
			d           backend.Dtype
			batch, size int
			weight      device.Ptr
			want        bool
		}{
			{r, f32, 5, 4, 1 << 20, true}, {r, f32, 5, 64, 1 << 20, true}, {r, f32, 5, 68, 1 << 20, true}, {r, f32, 5, 128, 1 << 20, true}, {r, f32, 5, 128, 1<<20 + 16, true},
			{old, f32, 5, 64, 1 << 20, true}, {old, f32, 5, 68, 1 << 20, false},
			{r, f32, 5, 66, 1 << 20, false}, {r, f32, 5, 132, 1 << 20, false}, {r, f32, 5, 64, 1<<20 + 4, false},
			{r, f32, 1024, 128, 1 << 20, true}, {r, f32, 1025, 128, 1 << 20, false}, {r, f32, 2048, 64, 1 << 20, true}, {r, f32, 2049, 64, 1 << 20, false},
			{r, backend.Float64, 5, 64, 1 << 20, false}, {r, backend.BFloat16, 5, 64, 1 << 20, false},
		} {
			call := c.on.passCall(op, c.d, plan.Recurrence{Steps: 3, Batch: c.batch, Size: c.size}, c.weight)
			assert.Equal(t, c.want, c.on.Supports(call), "%s of %v, %d by %d states, weights at %x", op.Name(), c.d, c.batch, c.size, c.weight)
		}
	}
}

// TestLaunchesOfAPass: launches have a block for each row of the batch, whole warps with a thread
// for 4 by 4 weights of each stage, and shared memory for weights that are not in registers.
func TestLaunchesOfAPass(t *testing.T) {
	const weights = 4 * 4 * 4 // bytes of a stage of a thread
	for _, c := range []struct {
		op, grad                             backend.Op
		size                                 int
		edition                              string
		threads, room, gradThreads, gradRoom uint32
	}{
		{backend.LSTM, backend.LSTMGrad, 4, "64", 32, 0, 32, 0},
		{backend.LSTM, backend.LSTMGrad, 60, "64", 256, 0, 256, 0},
		{backend.LSTM, backend.LSTMGrad, 68, "128", 288, 3 * weights * 288, 288, 3 * weights * 288},
		{backend.LSTM, backend.LSTMGrad, 128, "128", 512, 96 << 10, 512, 96 << 10},
		{backend.GRU, backend.GRUGrad, 64, "64", 192, 0, 256, 0},
		{backend.GRU, backend.GRUGrad, 128, "128", 384, 3 * weights * 384, 512, weights * 512},
		{backend.RNNTanh, backend.RNNTanhGrad, 64, "64", 64, 0, 64, 0},
		{backend.RNNReLU, backend.RNNReLUGrad, 128, "128", 128, 3 * weights * 128, 128, 3 * weights * 128},
	} {
		r := newRig(t)
		p := plan.Recurrence{Steps: 3, Batch: 5, Size: c.size, Reverse: true}
		require.NoError(t, r.Do(t.Context(), r.passCall(c.op, backend.Float32, p, 1<<20)))
		require.NoError(t, r.Do(t.Context(), r.passCall(c.grad, backend.Float32, p, 1<<20)))
		lastAlone := r.passCall(c.op, backend.Float32, p, 1<<20)
		lastAlone.Args[6].Bytes /= 3
		require.NoError(t, r.Do(t.Context(), lastAlone))
		require.Len(t, r.all, 3)
		name, _, _ := strings.Cut(c.op.Name(), " ")
		for i, l := range r.all {
			grad, threads, room := "", c.threads, c.room
			if i == 1 {
				grad, threads, room = "_grad", c.gradThreads, c.gradRoom
			}
			assert.Equal(t, name+grad+"_"+c.edition+"_f32", l.Kernel)
			assert.Equal(t, [3]uint32{5, 1, 1}, l.Grid)
			assert.Equal(t, [3]uint32{threads, 1, 1}, l.Block, l.Kernel)
			assert.Equal(t, room, l.SharedBytes, l.Kernel)
		}
		relu := uint64(0)
		if c.op == backend.RNNReLU {
			relu = 1
		}
		sizes := []uint64{3, 5, uint64(c.size), 1}
		assert.Equal(t, append(slices.Clone(sizes), 1, relu), r.all[0].Args[8:], "all cell states are kept")
		assert.Equal(t, append(slices.Clone(sizes), relu), r.all[1].Args[11:])
		assert.Equal(t, append(slices.Clone(sizes), 0, relu), r.all[2].Args[8:], "the last cell state alone is kept")
	}
}
