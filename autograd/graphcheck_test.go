package autograd_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

func matches(b *tapetest.Bench, what string, want array, x *tensor.Tensor, tolerance float64) error {
	if fmt.Sprint(want.shape) != fmt.Sprint([]int(x.Shape())) {
		return fmt.Errorf("%s has shape %v, want %v", what, x.Shape(), want.shape)
	}
	got, err := tensor.ToSlice[float64](b.Ctx, x, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	for i, v := range want.data {
		if !tapetest.Near(v, got[i], tolerance) {
			return fmt.Errorf("%s is %v, want %v", what, got, want.data)
		}
	}
	return nil
}

const valueTolerance, slopeTolerance = 1e-10, 1e-6

// check runs the graph and compares every value with the reference, every gradient with central
// differences, and the live tensors with those kept. It returns errors of the device unchanged.
func (g *graph) check(b *tapetest.Bench) (err error) {
	ts, err := g.tensors(b)
	var ps []*autograd.Parameter
	if err == nil {
		ps, err = g.parameters(ts)
	}
	defer func() {
		if r := releaseAll(ts, ps); err == nil {
			err = r
		}
	}()
	if err != nil {
		return err
	}
	values := make([]array, len(g.leaves))
	for i, l := range g.leaves {
		values[i] = l.value
	}
	base, want := g.naive(values, nil)

	tape := autograd.NewTape(b.Ctx, b.RT)
	defer tape.Close()
	if err := g.checkTape(b, tape, ts, ps, base, want); err != nil {
		for i, p := range ps {
			if p.Grad() != nil && tape.Err() != nil {
				return fmt.Errorf("after an error v%d has a gradient", i)
			}
		}
		return err
	}
	return g.checkNoGrad(b, ts, ps, base, want)
}

func (g *graph) checkTape(b *tapetest.Bench, tape *autograd.Tape, ts []*tensor.Tensor, ps []*autograd.Parameter, base []array, want float64) error {
	before, _ := b.RT.Live()
	vs, loss := g.forward(tape, ts, ps)
	if err := tape.Err(); err != nil {
		return err
	}
	for i, v := range vs {
		if v.Value().Released() {
			continue // by the program, and no gradient needs it
		}
		if err := matches(b, fmt.Sprintf("v%d", i), base[i], v.Value(), valueTolerance); err != nil {
			return err
		}
	}
	result, err := tape.Backward(loss)
	if g.lossNeeds() == 0 {
		if err == nil {
			return fmt.Errorf("a loss of constants has a gradient")
		}
		return nil
	}
	if err != nil {
		return err
	}
	if err := matches(b, "the loss", array{nil, []float64{want}}, result, valueTolerance); err != nil {
		return err
	}
	for i, v := range vs {
		kept := i >= len(g.leaves) && g.steps[i-len(g.leaves)].keep
		param := i < len(g.leaves) && g.leaves[i].kind == asParam
		switch {
		case v.Value().Released() == (kept || param):
			return fmt.Errorf("v%d: released: %v, kept: %v", i, v.Value().Released(), kept)
		case kept:
			if err := matches(b, fmt.Sprintf("v%d after Backward", i), base[i], v.Value(), valueTolerance); err != nil {
				return err
			}
		}
	}
	if err := g.checkLeft(b, before, vs); err != nil {
		return err
	}
	for i := range g.leaves {
		if err := g.checkGradient(b, vs[i], i, base); err != nil {
			return err
		}
	}
	return tape.Close()
}

// checkLeft counts the tensors after Backward: the loss, kept values, and the gradients of leaves.
func (g *graph) checkLeft(b *tapetest.Bench, before int, vs []*autograd.Variable) error {
	want := before + 1
	for i, v := range vs {
		if v.Grad() != nil {
			want++
		}
		if i >= len(g.leaves) && g.steps[i-len(g.leaves)].keep {
			want++
		}
		if i >= len(g.leaves) && v.Grad() != nil {
			return fmt.Errorf("v%d, which is no leaf, has a gradient after Backward", i)
		}
	}
	if now, _ := b.RT.Live(); now != want && !b.Shared {
		return fmt.Errorf("%d tensors live after Backward, want %d", now, want)
	}
	return nil
}

func (g *graph) checkGradient(b *tapetest.Bench, v *autograd.Variable, leaf int, base []array) error {
	if g.lossNeeds()&(1<<leaf) == 0 {
		if v.Grad() != nil {
			return fmt.Errorf("v%d has a gradient", leaf)
		}
		return nil
	}
	slopes := zeros(base[leaf].shape...)
	for i := range slopes.data {
		slopes.data[i] = g.slope(base, leaf, i)
	}
	return matches(b, fmt.Sprintf("the gradient of v%d", leaf), slopes, v.Grad(), slopeTolerance)
}

func (g *graph) checkNoGrad(b *tapetest.Bench, ts []*tensor.Tensor, ps []*autograd.Parameter, base []array, want float64) error {
	tape := autograd.NoGrad(b.Ctx, b.RT)
	defer tape.Close()
	vs, loss := g.forward(tape, ts, ps)
	if err := tape.Err(); err != nil {
		return err
	}
	for i, v := range vs {
		if g.reads[i] > 1 || (i >= len(g.leaves) && g.steps[i-len(g.leaves)].keep) {
			if err := matches(b, fmt.Sprintf("v%d without gradients", i), base[i], v.Value(), valueTolerance); err != nil && !autograd.Released(v) {
				return err
			}
		}
	}
	return matches(b, "the loss without gradients", array{nil, []float64{want}}, loss.Value(), valueTolerance)
}

// TestGraphsAgainstFiniteDifferences runs random graphs: broadcasts, variables that are read
// several times, operands that are one tensor, values kept and released on the way, and parts
// computed without gradients.
func TestGraphsAgainstFiniteDifferences(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	graphs := tapetest.Rounds(15, 3) * len(graphOps)
	random := rand.New(rand.NewPCG(10, uint64(graphs)))
	used := make(map[string]int)
	for i := range graphs {
		g := newGraph(random, 1+random.IntN(14))
		before := b.Live()
		require.NoError(t, g.check(b), "graph %d:\n%v", i, g)
		require.LessOrEqual(t, b.Live(), max(before, 1), "graph %d leaked (one is the word for faults):\n%v", i, g)
		for _, st := range g.steps {
			if st.op != detached {
				used[graphOps[st.op].name]++
			}
		}
	}
	for _, op := range graphOps {
		assert.GreaterOrEqual(t, used[op.name], tapetest.Rounds(5, 1), "%s is too rare to be tested", op.name)
	}
}

// TestGraphsWithoutMemory lets memory run out at every allocation of random graphs. The result is
// the error, or the right numbers.
func TestGraphsWithoutMemory(t *testing.T) {
	b := tapetest.Open(t, 2<<20) // one segment
	random := rand.New(rand.NewPCG(12, 0))
	graphs := 25
	if testing.Short() {
		graphs = 5
	}
	for i := range graphs {
		g := newGraph(random, 6)
		failures := 0
		for free := 0; ; free++ {
			require.Less(t, free, 100)
			filler := b.Fill(free)
			before := b.Live()
			err := g.check(b)
			after := b.Live()
			for _, block := range filler {
				require.NoError(t, block.Free())
			}
			if err == nil {
				break
			}
			failures++
			require.ErrorIs(t, err, memcache.ErrOutOfMemory, "graph %d, %d free blocks:\n%v", i, free, g)
			require.LessOrEqual(t, after, before+1, "graph %d, %d free blocks (one is the word for faults):\n%v", i, free, g)
		}
		require.Greater(t, failures, 1)
	}
}

// byteChoice makes the choices of a fuzzer's bytes, and the first one after their end.
type byteChoice struct{ rest []byte }

func (c *byteChoice) IntN(n int) int {
	if len(c.rest) == 0 {
		return 0
	}
	v := int(c.rest[0])
	c.rest = c.rest[1:]
	return v % n
}

// FuzzGraph makes a graph from bytes and compares it with the reference.
func FuzzGraph(f *testing.F) {
	random := rand.New(rand.NewPCG(11, 11))
	for n := range 8 {
		seed := make([]byte, 40*n)
		for i := range seed {
			seed[i] = byte(random.IntN(256))
		}
		f.Add(uint8(n), seed)
	}
	f.Fuzz(func(t *testing.T, steps uint8, choices []byte) {
		b := tapetest.Open(t, 16<<20)
		g := newGraph(&byteChoice{choices}, int(steps%16))
		require.NoError(t, g.check(b), "%v", g)
		require.LessOrEqual(t, b.Live(), int64(1), "%v", g)
	})
}
