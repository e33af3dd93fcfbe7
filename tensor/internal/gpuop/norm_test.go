package gpuop

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

func (r *rig) launch(t *testing.T, op backend.Op, d backend.Dtype, p any) []device.Launch {
	c := r.NewCall(op, d)
	for range op.Roles() {
		c.Add(memory(1<<12, d, 64))
	}
	c.Plan, r.all = p, nil
	require.NoError(t, r.Do(t.Context(), c))
	return r.all
}

// TestNormGrids: the kernels of normalize.cu keep rows of up to 3,072 floats in registers. Their
// blocks have at most the 256 threads for which they are compiled.
func TestNormGrids(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		dtype         backend.Dtype
		cols, threads int
	}{
		{backend.Float32, 64, 32},
		{backend.Float32, 768, 64},
		{backend.Float32, 769, 128},
		{backend.Float32, 3072, 256},
		{backend.Float32, 1 << 20, 256},
		{backend.Float64, 384, 64},
		{backend.Float64, 385, 128},
	} {
		p := &plan.RowNorm{N: 3, Groups: 2, Per: c.cols, Inner: 1}
		for _, op := range []backend.Op{backend.Normalize, backend.AddNormalize, backend.NormalizeGrad} {
			l := r.launch(t, op, c.dtype, p)[0]
			assert.Equal(t, [2][3]uint32{{6, 1, 1}, {uint32(c.threads), 1, 1}}, [2][3]uint32{l.Grid, l.Block}, "%v of %+v", op.Name(), c)
		}
	}
	for channels, blocks := range map[int]uint32{1: 98, 32: 17 * 32, 64: 8 * 64, 2000: 2000} {
		p := &plan.BatchNorm{N: 128, C: channels, Inner: 784, Training: true}
		for _, op := range []backend.Op{backend.BatchNormTraining, backend.BatchNormGrad} {
			for _, l := range r.launch(t, op, backend.Float32, p) {
				assert.Equal(t, [2][3]uint32{{blocks, 1, 1}, {128, 1, 1}}, [2][3]uint32{l.Grid, l.Block}, "%v of %d channels", l.Name, channels)
			}
		}
	}
}
