package offload_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// look is an operation that calls f when a function of a checkpoint runs again.
func look(t *autograd.Tape, x *autograd.Variable, f func()) *autograd.Variable {
	return t.Func("Look", []*autograd.Variable{x}, func(c *autograd.Call) (*tensor.Tensor, error) {
		if c.Recomputing() {
			f()
		}
		return c.Runtime().Copy(c.Context(), c.Input(0))
	}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) { return c.Grads(g, nil) })
}

// TestParametersInARerun: a checkpoint that runs again brings the group that it reads, and begins
// to bring only its own next one.
func TestParametersInARerun(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	o := b.Offloader(tensor.OffloadConfig{})
	all := offloadedGroups(b, o, 6)
	ps, later := all[:4], all[4:]
	x := tapetest.Upload(b, []float64{0.1, 0.2, 0.3})
	here := func() (n int) {
		for _, p := range ps {
			if !p.Value().Offloaded() {
				n++
			}
		}
		return n
	}
	tape := autograd.NewTape(b.Ctx, b.RT)
	var ahead, fetched []int64
	var present []int
	y := remat.Checkpoint(tape, func() *autograd.Variable {
		z := tape.Input(x)
		for _, p := range ps {
			z = look(tape, tape.Mul(z, tape.Param(p)), func() {
				s := o.Stats()
				ahead, fetched, present = append(ahead, s.Prefetched), append(fetched, s.Fetched), append(present, here())
			})
		}
		return z
	})
	y = tape.Func("Between", []*autograd.Variable{y}, func(c *autograd.Call) (*tensor.Tensor, error) {
		return c.Runtime().Copy(c.Context(), c.Input(0))
	}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		fetched = append(fetched, o.Stats().Fetched)
		return c.Grads(g, nil)
	})
	end := remat.Checkpoint(tape, func() *autograd.Variable { return tape.Mul(tape.Mul(y, tape.Param(later[0])), tape.Param(later[1])) })
	_, err := tape.Backward(tape.Sum(end))
	require.NoError(t, err)
	require.NoError(t, tape.Close())
	first := ahead[0]
	require.Equal(t, []int64{first, first + 1, first + 2, first + 2}, ahead, "the next group of the checkpoint comes")
	begin := fetched[0]
	require.Equal(t, []int64{begin, begin + 1, begin + 2, begin + 3, begin + 4}, fetched, "each group when it is read")
	require.Equal(t, []int{1, 1, 1, 1}, present, "one group at a time")
	for _, p := range all {
		require.NoError(t, p.ZeroGrad(b.Ctx))
	}
}

// TestParametersReadACopyAgain: without gradients the 16-bit copy of an offloaded parameter is
// freed when its group leaves, and the next operation that reads its variable makes it again.
func TestParametersReadACopyAgain(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	o := b.Offloader(tensor.OffloadConfig{})
	in := nn.Init(b.Ctx, b.RT)
	p, q := in.Parameter([]float64{2, 3}), in.Parameter([]float64{5, 7})
	for _, p := range []*autograd.Parameter{p, q} {
		require.NoError(t, offload.Parameters(b.Ctx, autograd.Parameters{{Name: "p", Parameter: p}}, o))
	}
	tape := autograd.NoGrad(b.Ctx, b.RT)
	tape.SetComputeDtype(tensor.BFloat16)
	v, w := tape.Param(p), tape.Param(q)
	y := tape.Mul(v, tape.Mul(w, tape.Mul(v, w)))
	require.True(t, v.Tensor() != p.Value() && tape.Err() == nil, tape.Err())
	y = tape.Add(y, tape.Mul(w, w))
	require.True(t, v.Tensor().Released(), "the group has left")
	y = tape.Cast(tape.Add(y, v), tensor.Float32)
	require.Equal(t, []float32{4*25 + 25 + 2, 9*49 + 49 + 3 - 1}, tapetest.Read[float32](b, y.Value()), "493 has no bfloat16")
	require.NoError(t, tape.Close())
	require.NoError(t, offload.Parameters(b.Ctx, autograd.Parameters{{Name: "p", Parameter: p}, {Name: "q", Parameter: q}}, nil))
	require.NoError(t, in.Close())
}
