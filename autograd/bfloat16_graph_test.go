package autograd_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// The error of a gradient in bfloat16 depends on the program, which may cancel values that its
// operations compute to 2^-9. So the reference, in float64, is run with errors of its own: each
// element that an operation computes has a random error of ±2^-8 of itself. The error stands for
// two roundings, of the value and of its gradient, and changes later gradients as these do. The
// gradients of such runs scatter around the right one. The tape's error may be at most twice their
// root mean square.

// noise are the errors of a run, for the elements of each operation and of each term of the loss.
type noise struct {
	random *rand.Rand
	of     [][]float64
}

// factor returns the factor of the i-th element of the k-th operation or term, always the same one.
func (n *noise) factor(k, i int) float64 {
	if n == nil {
		return 1
	}
	for len(n.of) <= k {
		n.of = append(n.of, nil)
	}
	for len(n.of[k]) <= i {
		n.of[k] = append(n.of[k], 1+0x1p-8*float64(1-2*n.random.IntN(2)))
	}
	return n.of[k][i]
}

// noisy is naive with errors. margin is the least distance to a kink or a pole.
func (g *graph) noisy(leaves, base []array, n *noise) (all []array, loss, margin float64) {
	d := &domain{margin: math.Inf(1)}
	all = slices.Clone(leaves)
	for k, st := range g.steps {
		if st.op == detached && base != nil {
			all = append(all, base[len(all)])
			continue
		}
		var xs []array
		for _, a := range st.args {
			xs = append(xs, all[a])
		}
		y, _ := st.naive(d, xs)
		y = array{y.shape, slices.Clone(y.data)}
		for i := range y.data {
			y.data[i] *= n.factor(k, i)
		}
		all = append(all, y)
	}
	for k, l := range g.loss {
		loss += l.c * all[l.v].sum(nil, l.mean).data[0] * n.factor(len(g.steps)+k, 0)
	}
	return all, loss, d.margin
}

// slopes are the derivatives of the loss by a leaf's elements, with errors.
func (g *graph) noisySlopes(base []array, leaf int, n *noise) (slopes []float64) {
	const h = 1e-4
	leaves := slices.Clone(base[:len(g.leaves)])
	for i := range base[leaf].data {
		at := func(x float64) float64 {
			leaves[leaf] = array{base[leaf].shape, slices.Clone(base[leaf].data)}
			leaves[leaf].data[i] += x
			_, loss, _ := g.noisy(leaves, base, n)
			return loss
		}
		slopes = append(slopes, (8*(at(h)-at(-h))-(at(2*h)-at(-2*h)))/(12*h))
	}
	return slopes
}

// saturated reports whether the graph has a function near its bounds whose gradient is computed
// from the rounded result, such as y(1-y), because 1-y has few digits there.
func (g *graph) saturated(base []array) bool {
	for k, st := range g.steps {
		if st.op == detached || !slices.Contains([]string{"Sigmoid", "Tanh", "Softmax"}, graphOps[st.op].name) {
			continue
		}
		if slices.ContainsFunc(base[len(g.leaves)+k].data, func(v float64) bool { return math.Abs(v) > 0.75 }) {
			return true
		}
	}
	return false
}

// cancels reports whether an operation takes one operand twice and its two gradients may cancel,
// because the noise does not model that each of them is rounded.
func (g *graph) cancels() bool {
	return slices.ContainsFunc(g.steps, func(st graphStep) bool {
		return st.op != detached && slices.Contains([]string{"Div", "Pow", "BCEWithLogits", "KLDivLoss"}, graphOps[st.op].name) && st.args[0] == st.args[1]
	})
}

// TestBFloat16Graphs: the gradients of random graphs are those of the reference in float64, except
// for rounding.
func TestBFloat16Graphs(t *testing.T) {
	const runs, margin, off = 16, 0.03, 2
	b := tapetest.Open(t, 64<<20)
	graphs := 400
	if testing.Short() {
		graphs = 40
	}
	random := rand.New(rand.NewPCG(16, 10))
	compared, worst, far := 0, 0.0, 0.0
	for k := range graphs {
		g := newGraph(random, 1+random.IntN(7))
		for _, l := range g.leaves {
			for i, v := range l.value.data {
				l.value.data[i] = float64(tensor.ToBF16(float32(v)).Float32())
			}
		}
		values := make([]array, len(g.leaves))
		for i, l := range g.leaves {
			values[i] = l.value
		}
		base, _, left := g.noisy(values, nil, nil)
		noises, bases := make([]*noise, runs), make([][]array, runs)
		for i := range runs {
			noises[i] = &noise{random: random}
			var m float64
			bases[i], _, m = g.noisy(values, nil, noises[i])
			left = min(left, m)
		}
		if left < margin || g.lossNeeds() == 0 || g.cancels() || g.saturated(base) {
			continue
		}
		grads := g.halfGradients(b)
		for leaf := range g.leaves {
			if g.lossNeeds()&(1<<leaf) == 0 {
				require.Nil(t, grads[leaf])
				continue
			}
			want := g.noisySlopes(base, leaf, nil)
			squares := make([]float64, len(want))
			for i := range runs {
				for j, v := range g.noisySlopes(bases[i], leaf, noises[i]) {
					squares[j] += (v - want[j]) * (v - want[j]) / runs
				}
			}
			for j, v := range want {
				tolerance := off*math.Sqrt(squares[j]) + 0x1p-8*math.Abs(v) + 1e-6
				difference := math.Abs(float64(grads[leaf][j]) - v)
				require.LessOrEqual(t, difference, tolerance, "graph %d, v%d: element %d is %v, want %v:\n%v", k, leaf, j, grads[leaf][j], v, g)
				worst, far = max(worst, difference/tolerance), max(far, tolerance/(math.Abs(v)+0.1))
				compared++
			}
		}
	}
	t.Logf("%d gradients compared, the worst %.2f of its tolerance; the widest tolerance %.2f", compared, worst, far)
	assert.Greater(t, compared, graphs)
}

// halfGradients are the gradients of the leaves in bfloat16, or nil.
func (g *graph) halfGradients(b *tapetest.Bench) (grads [][]float32) {
	ts, ps := g.floatTensors(b)
	tape := halfTape(b)
	vs, loss := g.forward(tape, ts, ps)
	_, err := tape.Backward(loss)
	require.NoError(b.T, err, "%v", g)
	for _, v := range vs[:len(g.leaves)] {
		if v.Grad() == nil {
			grads = append(grads, nil)
		} else {
			grads = append(grads, floats(b, v.Grad()))
		}
	}
	require.NoError(b.T, tape.Close())
	require.NoError(b.T, releaseAll(ts, ps))
	return grads
}

// floatTensors makes the leaves' tensors in float32, and the parameters.
func (g *graph) floatTensors(b *tapetest.Bench) (ts []*tensor.Tensor, ps []*autograd.Parameter) {
	for i, l := range g.leaves {
		data := make([]float32, len(l.value.data))
		for i, v := range l.value.data {
			data[i] = float32(v)
		}
		var x *tensor.Tensor
		var err error
		if len(l.value.shape) == 0 {
			x, err = b.RT.Full(b.Ctx, l.value.data[0], tensor.Float32)
		} else {
			x, err = tensor.FromSlice(b.Ctx, b.RT, data, l.value.shape...)
		}
		require.NoError(b.T, err)
		ts, ps = append(ts, x), append(ps, nil)
		if l.kind == asParam {
			p, err := autograd.NewParameter(x)
			require.NoError(b.T, err)
			ps[i] = p
		}
	}
	return ts, ps
}
