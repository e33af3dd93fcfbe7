package offload_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestParametersComeBesideKernels: while a kernel of one layer runs in either pass, the parameters
// of the next layer arrive; in the forward pass only when the order is known.
func TestParametersComeBesideKernels(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := cisterntest.Stream(t, b.Dev)
	o := b.Offloader(tensor.OffloadConfig{In: in})
	first, second := b.Parameter(3), b.Parameter(3)
	for _, p := range []*autograd.Parameter{first, second} {
		require.NoError(t, offload.Parameters(b.Ctx, autograd.Parameters{{Name: "p", Parameter: p}}, o))
	}
	x := tapetest.Upload(b, []float64{0.1, 0.2, 0.3})
	ctx, cancel := context.WithTimeout(b.Ctx, 20*time.Second)
	defer cancel()
	passes := 0
	comes := func(p *autograd.Parameter, ahead int64) func() {
		return func() {
			passes++
			require.True(t, p.Value().Offloaded(), "it is on its way, and nobody waits for it")
			require.Equal(t, ahead, o.Stats().Prefetched)
			require.NoError(t, in.Synchronize(ctx), "the copy waits for the kernel that it is to run beside")
			done, err := b.RT.Stream().Query()
			require.NoError(t, err)
			require.False(t, done, "the kernel runs")
		}
	}
	var want []float64
	for pass := range int64(3) {
		tape := autograd.NewTape(b.Ctx, b.RT)
		y := tape.Mul(tape.Leaf(x), tape.Param(first))
		forward := comes(second, 2*pass)
		if pass == 0 {
			forward = func() {}
		}
		y = heldFunc(b, tape, y, forward, comes(first, 2*pass+1))
		_, err := tape.Backward(tape.Sum(tape.Mul(y, tape.Param(second))))
		require.NoError(t, err)
		got := append(tapetest.Read[float64](b, first.Grad()), tapetest.Read[float64](b, second.Grad())...)
		require.NoError(t, tape.Close())
		require.NoError(t, first.ZeroGrad(b.Ctx))
		require.NoError(t, second.ZeroGrad(b.Ctx))
		if pass == 0 {
			want = got
		}
		require.Equal(t, want, got)
	}
	require.Equal(t, 5, passes)
	require.NoError(t, offload.Parameters(b.Ctx, autograd.Parameters{{Name: "first", Parameter: first}, {Name: "second", Parameter: second}}, nil))
}

// offloadedGroups returns parameters of three elements, each in its own group.
func offloadedGroups(b *tapetest.Bench, o *tensor.Offloader, n int) (ps []*autograd.Parameter) {
	b.T.Helper()
	for range n {
		p := b.Parameter(3)
		require.NoError(b.T, offload.Parameters(b.Ctx, autograd.Parameters{{Name: "p", Parameter: p}}, o))
		ps = append(ps, p)
	}
	b.T.Cleanup(func() {
		for _, p := range ps {
			require.NoError(b.T, p.Release())
		}
	})
	return ps
}

// TestParametersKnowTheNext: after a pass has shown the order, each group except the first comes
// early, even if a group is used twice, and again after the order has changed. A group that came
// early and is not needed leaves.
func TestParametersKnowTheNext(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	o := b.Offloader(tensor.OffloadConfig{})
	ps := offloadedGroups(b, o, 4)
	x := tapetest.Upload(b, []float64{1, 2, 3})
	pass := func(order ...int) (fetched, early int64) {
		before := o.Stats()
		tape := autograd.NoGrad(b.Ctx, b.RT)
		y := tape.Input(x)
		for i, k := range order {
			y = tape.Mul(y, tape.Param(ps[k]))
			for j, p := range ps {
				require.Equal(t, j != k, p.Value().Offloaded(), "%v, %d", order, i)
			}
		}
		require.NoError(t, tape.Close())
		for _, p := range ps {
			require.True(t, p.Value().Offloaded())
		}
		require.Zero(t, b.Bytes()-x.Block().Size(), "what came early has gone")
		s := o.Stats()
		return s.Fetched - before.Fetched, s.Prefetched - before.Prefetched
	}
	for _, c := range []struct {
		order   []int
		early   int64
		learned int64
	}{{[]int{0, 1, 2, 3}, 0, 3}, {[]int{0, 1, 2, 0, 3}, 3, 4}, {[]int{3, 1}, 0, 1}, {[]int{0, 1, 2, 0, 3}, 4, 4}} {
		fetched, early := pass(c.order...)
		require.EqualValues(t, len(c.order), fetched)
		require.Equal(t, c.early, early, "%v", c.order)
		for range 2 {
			fetched, early = pass(c.order...)
			require.EqualValues(t, len(c.order), fetched)
			require.Equal(t, c.learned, early, "%v", c.order)
		}
	}
	_, early := pass(0, 1, 0)
	require.EqualValues(t, 2, early, "2 came instead of 0")
	_, early = pass(0, 1)
	require.EqualValues(t, 2, early, "the pass ended where 0 or 2 came before")
	s := o.Stats()
	require.Equal(t, s.Offloaded.Allocated-4, s.Unchanged, "nothing but the first was copied")
}
