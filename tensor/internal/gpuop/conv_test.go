package gpuop

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// TestConvolutionsByRuns: the kernels of convolutions of 128 square pictures.
func TestConvolutionsByRuns(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		channels, filters, window, stride, side int
		conv, inputGrad, weightGrad             string
	}{
		{32, 32, 3, 1, 28, "conv_run_3_f32", "conv_input_grad_run_3_f32", "conv_weight_grad_3_32_f32"},
		{16, 16, 3, 1, 28, "conv_run_3_f32", "conv_input_grad_run_3_f32", "conv_weight_grad_3_few_f32"},
		{64, 64, 3, 1, 16, "conv_run_3_f32", "conv_input_grad_run_3_f32", "conv_weight_grad_3_16_f32"},
		{64, 64, 3, 1, 8, "conv_run_3_f32", "conv_input_grad_run_3_f32", "conv_weight_grad_3_8_f32"},
		{32, 64, 3, 2, 28, "conv_run_3_by_2_f32", "conv_input_grad_run_3_by_2_f32", "conv_weight_grad_3_by_2_16_f32"},
		{32, 64, 3, 2, 16, "conv_run_3_by_2_f32", "conv_input_grad_run_3_by_2_f32", "conv_weight_grad_3_by_2_8_f32"},
		{32, 32, 5, 1, 28, "conv_run_5_f32", "conv_input_grad_run_5_f32", "conv_weight_grad_32_f32"},
		{32, 64, 5, 2, 28, "conv_64_f32", "conv_input_grad_32_f32", "conv_weight_grad_64_f32"},
		{64, 64, 3, 1, 224, "conv_run_3_f32", "conv_input_grad_run_3_f32", "conv_weight_grad_64_f32"}, // sums would be too long
		{64, 4, 3, 1, 28, "conv_direct_f32", "conv_input_grad_run_3_f32", "conv_weight_grad_3_few_f32"},
		{1, 32, 3, 1, 28, "conv_run_3_f32", "conv_input_grad_direct_f32", "conv_weight_grad_any_f32"},
		{8, 64, 3, 1, 28, "conv_run_3_f32", "conv_input_grad_run_3_f32", "conv_weight_grad_any_f32"},
		{128, 64, 1, 2, 28, "conv_64_f32", "conv_input_grad_64_f32", "conv_weight_grad_any_f32"},
	} {
		p := squareConv(c.channels, c.filters, c.window, c.stride, c.side)
		for op, want := range map[backend.Op]string{backend.Conv: c.conv, backend.ConvInputGrad: c.inputGrad, backend.ConvWeightGrad: c.weightGrad} {
			assert.Equal(t, want, r.convolve(t, op, p)[0].Kernel, "%v of %+v", op, c)
		}
	}
}

// squareConv is a convolution of 128 square pictures with a square window.
func squareConv(channels, filters, window, stride, side int) *plan.Conv {
	out := (side-1)/stride + 1
	return &plan.Conv{N: 128, Groups: 1, C: channels, K: filters, In: [2]int{side, side}, Out: [2]int{out, out},
		Window: [2]int{window, window}, Stride: [2]int{stride, stride}, Pad: [2]int{window / 2, window / 2}, Dilation: [2]int{1, 1}}
}

// convolve returns the launches of an operation of p.
func (r *rig) convolve(t *testing.T, op backend.Op, p *plan.Conv) []device.Launch {
	call := r.NewCall(op, backend.Float32)
	for range op.Roles() {
		call.Add(memory(1<<12, backend.Float32, p.K*p.Inner()))
	}
	call.Plan = p
	r.all = nil
	require.NoError(t, r.Do(t.Context(), call))
	return r.all
}

// TestConvWeightGradInParts: a gradient of weights has two blocks for each multiprocessor of an
// H200, as long as its parts fit in scratch memory. The parts are added by a few threads for each
// weight. GPUs before compute capability 8.0 use tiles.
func TestConvWeightGradInParts(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		channels, filters, side, shared int
		blocks, columns, blocksOfParts  uint32
		scratch                         int64
	}{
		{32, 64, 26, 92160, 264, 8, 2304, 66 * 18432 * 4},
		{64, 64, 14, 79872, 264, 16, 2304, 33 * 36864 * 4},
		{128, 128, 7, 78336, 256, 128, 1152, 8 * 147456 * 4},
		{16, 16, 28, 73728, 264, 8, 288, 264 * 2304 * 4},
		{1, 32, 28, 55296, 264, 8, 36, 264 * 288 * 4},
	} {
		r.scratch = 0
		all := r.convolve(t, backend.ConvWeightGrad, squareConv(c.channels, c.filters, 3, 1, c.side))
		require.Len(t, all, 2)
		assert.Equal(t, []uint32{c.blocks, 256, uint32(c.shared)}, []uint32{all[0].Grid[0], all[0].Block[0], all[0].SharedBytes}, "%+v", c)
		assert.Equal(t, []uint32{c.blocksOfParts, c.columns, 256 / c.columns}, []uint32{all[1].Grid[0], all[1].Block[0], all[1].Block[1]}, "%+v", c)
		assert.Equal(t, c.scratch, r.scratch, "%+v", c)
	}
	r.hasMatrixUnits = func() bool { return false }
	assert.Equal(t, "conv_weight_grad_64_f32", r.convolve(t, backend.ConvWeightGrad, squareConv(32, 64, 3, 1, 26))[0].Kernel)
	assert.Equal(t, "conv_weight_grad_32_f32", r.convolve(t, backend.ConvWeightGrad, squareConv(1, 32, 3, 1, 28))[0].Kernel)
}
