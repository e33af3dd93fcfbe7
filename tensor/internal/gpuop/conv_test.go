package gpuop

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// TestConvolutionsByRuns: the kernels of convolutions of 128 pictures of 28 by 28 pixels.
func TestConvolutionsByRuns(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		channels, filters, window, stride, side int
		conv, inputGrad, weightGrad             string
	}{
		{32, 32, 3, 1, 28, "conv_run_3_f32", "conv_input_grad_run_3_f32", "conv_weight_grad_run_3_wide_f32"},
		{16, 16, 3, 1, 28, "conv_run_3_f32", "conv_input_grad_run_3_f32", "conv_weight_grad_run_3_f32"},
		{64, 64, 3, 1, 16, "conv_run_3_f32", "conv_input_grad_run_3_f32", "conv_weight_grad_run_3_small_f32"},
		{32, 64, 3, 2, 28, "conv_run_3_by_2_f32", "conv_input_grad_run_3_by_2_f32", "conv_weight_grad_64_f32"},
		{32, 32, 5, 1, 28, "conv_run_5_f32", "conv_input_grad_run_5_f32", "conv_weight_grad_32_f32"},
		{32, 64, 5, 2, 28, "conv_64_f32", "conv_input_grad_32_f32", "conv_weight_grad_64_f32"},
		{64, 4, 3, 1, 28, "conv_direct_f32", "conv_input_grad_run_3_f32", "conv_weight_grad_run_3_f32"},
		{1, 32, 3, 1, 28, "conv_run_3_f32", "conv_input_grad_direct_f32", "conv_weight_grad_small_f32"},
	} {
		out := (c.side-1)/c.stride + 1
		p := &plan.Conv{N: 128, Groups: 1, C: c.channels, K: c.filters, In: [2]int{c.side, c.side}, Out: [2]int{out, out},
			Window: [2]int{c.window, c.window}, Stride: [2]int{c.stride, c.stride}, Pad: [2]int{c.window / 2, c.window / 2}, Dilation: [2]int{1, 1}}
		for op, want := range map[backend.Op]string{backend.Conv: c.conv, backend.ConvInputGrad: c.inputGrad, backend.ConvWeightGrad: c.weightGrad} {
			call := r.NewCall(op, backend.Float32)
			for range op.Roles() {
				call.Add(memory(1<<12, backend.Float32, c.filters*c.channels*c.window*c.window))
			}
			call.Plan = p
			r.all = nil
			require.NoError(t, r.Do(t.Context(), call))
			assert.Equal(t, want, r.all[0].Kernel, "%v of %+v", op, c)
		}
	}
}
