package gpuop

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// TestFloatAttention: launches have a block for each tile and element of the batch, and dynamic
// shared memory for its tiles. For heads with too many columns, few queries, and GPUs before
// compute capability 8.0 the kernels without editions run.
func TestFloatAttention(t *testing.T) {
	r := newRig(t)
	launches := func(p plan.Attention) []device.Launch {
		p.Dims, p.S = []int{7, 3}, 200
		r.all = nil
		for _, op := range []backend.Op{backend.Attention, backend.AttentionGrad} {
			c := r.NewCall(op, backend.Float32)
			for range op.Roles() {
				c.Add(memory(1<<12, backend.Float32, 64))
			}
			c.Plan = &p
			require.NoError(t, r.Do(t.Context(), c))
		}
		return r.all
	}
	for head, want := range map[int]struct {
		forward, grad       string
		keys, threads       uint32
		shared, gradsShared uint32
	}{
		32:  {"attention_32_f32", "attention_grad_32_f32", 4, 64, 32 << 10, 49920},
		33:  {"attention_64_f32", "attention_grad_64_f32", 4, 64, 56 << 10, 82688},
		128: {"attention_128_f32", "attention_grad_128_f32", 7, 128, 72 << 10, 70016},
	} {
		all := launches(plan.Attention{L: 100, E: 8, V: head})
		require.Len(t, all, 3)
		assert.Equal(t, []any{want.forward, "attention_own_f32", want.grad}, []any{all[0].Kernel, all[1].Kernel, all[2].Kernel})
		assert.Equal(t, [3]uint32{2 * 21, 1, 1}, all[0].Grid)
		assert.Equal(t, [3]uint32{want.threads, 1, 1}, all[0].Block)
		assert.Equal(t, want.shared, all[0].SharedBytes)
		assert.Equal(t, [3]uint32{want.keys * 21, 1, 1}, all[2].Grid)
		assert.Equal(t, [3]uint32{128, 1, 1}, all[2].Block)
		assert.Equal(t, want.gradsShared, all[2].SharedBytes)
	}
	without := []any{"attention_f32", "attention_grad_query_f32", "attention_grad_key_f32"}
	kernels := func(all []device.Launch) (names []any) {
		for _, l := range all {
			names = append(names, l.Kernel)
		}
		return names
	}
	assert.Equal(t, without, kernels(launches(plan.Attention{L: 100, E: 129, V: 8})))
	assert.Equal(t, without, kernels(launches(plan.Attention{L: 32, E: 8, V: 8})))
	r.hasMatrixUnits = func() bool { return false }
	assert.Equal(t, without, kernels(launches(plan.Attention{L: 100, E: 8, V: 8})))
}
