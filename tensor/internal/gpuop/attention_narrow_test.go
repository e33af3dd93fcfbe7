package gpuop

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// TestNarrowAttention: launches have a block for each tile of rows, with fewer rows for heads with
// more columns. One launch computes the gradients of queries and keys. Calls that no edition can
// run are not supported.
func TestNarrowAttention(t *testing.T) {
	r := newRig(t)
	call := func(op backend.Op, p plan.Attention) *backend.Call {
		c := r.NewCall(op, backend.BFloat16)
		for range op.Roles() {
			c.Add(memory(1<<12, backend.BFloat16, 64))
		}
		c.Plan = &p
		return c
	}
	for head, want := range map[int]struct {
		forward, grad       string
		queries, keys, rows uint32
	}{64: {"attention_64_bf16", "attention_grad_64_bf16", 2, 4, 64}, 65: {"attention_128_bf16", "attention_grad_128_bf16", 4, 7, 32},
		128: {"attention_128_bf16", "attention_grad_128_bf16", 4, 7, 32}} {
		r.all = nil
		for _, op := range []backend.Op{backend.Attention, backend.AttentionGrad} {
			require.NoError(t, r.Do(t.Context(), call(op, plan.Attention{Dims: []int{7}, L: 100, S: 200, E: 8, V: head})))
		}
		require.Len(t, r.all, 3)
		assert.Equal(t, []any{want.forward, "attention_own_bf16", want.grad}, []any{r.all[0].Kernel, r.all[1].Kernel, r.all[2].Kernel})
		assert.Equal(t, [3]uint32{want.queries, 7, 1}, r.all[0].Grid)
		assert.Equal(t, [3]uint32{2 * want.rows, 1, 1}, r.all[0].Block)
		assert.Equal(t, [3]uint32{22, 1, 1}, r.all[1].Grid)
		assert.Equal(t, [3]uint32{7 * (want.queries + want.keys), 1, 1}, r.all[2].Grid)
		assert.Equal(t, [3]uint32{2 * want.rows, 1, 1}, r.all[2].Block)
	}
	supports := func(p plan.Attention) bool { return r.Supports(call(backend.Attention, p)) }
	assert.True(t, supports(plan.Attention{E: 128, V: 1}))
	assert.False(t, supports(plan.Attention{E: 1, V: 129}))
	assert.False(t, supports(plan.Attention{E: 8, V: 8, Masking: plan.BoolMask}))
	r.hasMatrixUnits = func() bool { return false }
	assert.False(t, supports(plan.Attention{E: 8, V: 8}))
}
