package autograd

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The backward pass runs in the reverse order of the forward pass. These tests hold that to other orders of the same steps: what these would save.

// reads are the inputs of a recorded operation that is no checkpoint.
func (n *node) reads() (vs []*Variable) {
	if n.call != nil {
		return n.call.inputs
	}
	for _, v := range n.in {
		if v != nil {
			vs = append(vs, v)
		}
	}
	return vs
}

// otherOrder puts the nodes in another order in which each step still comes behind those that it has its gradient from, and where three gradients or more meet
// they are added in the same order, so that the sum is the same to the bit; two have the same sum either way. Of what may come next deep takes what came last, and
// else it is any.
func otherOrder(nodes []node, random *rand.Rand, deep bool) {
	before := make([][]int, len(nodes)) // of each node, those that must wait for it
	waits := make([]int, len(nodes))
	order := func(first, then int) {
		before[first] = append(before[first], then)
		waits[then]++
	}
	producer, readers := map[*Variable]int{}, map[*Variable][]int{}
	for i := range nodes {
		producer[nodes[i].out] = i
		for _, v := range nodes[i].reads() {
			readers[v] = append(readers[v], i)
			if p, ok := producer[v]; ok {
				order(i, p)
			}
		}
	}
	for _, is := range readers {
		for k := 1; k < len(is) && len(is) > 2; k++ {
			if is[k] != is[k-1] {
				order(is[k], is[k-1])
			}
		}
	}
	var ready []int
	for i, n := range waits {
		if n == 0 {
			ready = append(ready, i)
		}
	}
	was := slices.Clone(nodes)
	for at := len(nodes) - 1; at >= 0; at-- {
		k := len(ready) - 1
		if !deep {
			k = random.IntN(len(ready))
		}
		i := ready[k]
		ready = slices.Delete(ready, k, k+1)
		nodes[at] = was[i]
		behind := before[i]
		random.Shuffle(len(behind), func(a, b int) { behind[a], behind[b] = behind[b], behind[a] })
		for _, p := range behind {
			if waits[p]--; waits[p] == 0 {
				ready = append(ready, p)
			}
		}
	}
}

// orderRun is a step with its nodes in the order that reorder leaves them in: what it holds at most in the forward and in the backward pass, in bytes, and its gradients.
// Without reorder they are in the order that the tape chooses.
func (b *bench) orderRun(record func(t *Tape) (loss *Variable), reorder func(nodes []node)) (forward, backward int64, grads map[string][]uint64) {
	tape := NewTape(b.ctx, b.rt)
	tape.inRecordedOrder = reorder != nil
	before := b.cache.MemoryAllocated()
	b.cache.ResetPeakStats()
	loss := record(tape)
	require.NoError(b.t, tape.Err())
	forward = b.cache.MaxMemoryAllocated() - before
	tape.releaseAllBut(loss) // what the program holds until Backward is no order's
	if reorder != nil {
		reorder(tape.nodes)
	}
	b.cache.ResetPeakStats()
	_, err := tape.Backward(loss)
	require.NoError(b.t, err)
	backward = b.cache.MaxMemoryAllocated() - before
	grads = map[string][]uint64{}
	for p := range tape.params {
		if p.Grad() != nil {
			grads[fmt.Sprintf("%s %p", p.name, p)] = b.bitsOf(p.Grad())
			require.NoError(b.t, p.ZeroGrad(b.ctx))
		}
	}
	require.NoError(b.t, tape.Close())
	return forward, backward, grads
}

// requireSameBits is require.Equal for many large gradients, which compares them much faster.
func requireSameBits(t testing.TB, want, got map[string][]uint64, message ...any) {
	t.Helper()
	if !maps.EqualFunc(want, got, slices.Equal[[]uint64]) {
		require.Equal(t, want, got, message...)
	}
}

// releaseAllBut is what Backward begins with.
func (t *Tape) releaseAllBut(loss *Variable) {
	for _, v := range t.values {
		if v != loss {
			v.Release()
		}
	}
}

// TestOtherOrdersOfTheBackwardPass of models with branches: gradients are the same to the bit in each, and the peak of a step is hardly less than in the reverse
// order of the forward pass.
func TestOtherOrdersOfTheBackwardPass(t *testing.T) {
	b := open(t, 1<<30)
	b.needsHost("the bytes of a step with the host's workspaces")
	orders := rounds(40, 2) // every other one is deep
	in := Init(b.ctx, b.rt, Seed(1))
	conv := func(i, o, k int) *Convolution { return in.Conv2d(i, o, k, Padding(k/2), NoBias()) }
	pooled := func(t *Tape, h *Variable, l *Linear) *Variable {
		return t.Sum(t.Square(l.Forward(t, Flatten{}.Forward(t, t.AdaptiveAvgPool2d(h, 1)))))
	}
	picture := func(stages []Layer, channels int) func(t *Tape, x *Variable) *Variable {
		l := in.Linear(channels, 10)
		return func(t *Tape, x *Variable) *Variable { return pooled(t, Sequential(stages).Forward(t, x), l) }
	}
	residual := func(i, o int) Layer {
		return branches{sum: true, of: []Sequential{{conv(i, o, 3), in.BatchNorm(o), ReLU{}, conv(o, o, 3), in.BatchNorm(o)}, {conv(i, o, 1), in.BatchNorm(o)}}}
	}
	inception := func(i int) Layer {
		return branches{of: []Sequential{{conv(i, 8, 1), ReLU{}}, {conv(i, 8, 1), ReLU{}, conv(8, 16, 3), ReLU{}}, {conv(i, 4, 1), ReLU{}, conv(4, 8, 5), ReLU{}}, {conv(i, 8, 1), ReLU{}}}}
	}
	n, rows := 64, rounds(256, 128)
	trunk, q, k, v, out := Sequential{in.Linear(n, 256), ReLU{}, in.Linear(256, n)}, in.Linear(n, n), in.Linear(n, n), in.Linear(n, n), in.Linear(n, n)
	large, small, deep := Sequential{in.Linear(n, 2000), LogSoftmax{}}, Sequential{in.Linear(n, 10)}, Sequential{in.Linear(n, 512), GELU{}, in.Linear(512, 8)}
	losses := func(first, second Layer) func(t *Tape, x *Variable) *Variable {
		return func(t *Tape, x *Variable) *Variable {
			h := trunk.Forward(t, x)
			a := t.Mean(t.Square(first.Forward(t, h)))
			return t.Add(a, t.Mean(t.Square(second.Forward(t, h))))
		}
	}
	experts := branches{sum: true}
	wide := branches{sum: true}
	for i, width := range []int{64, 1024, 128, 512, 256} {
		experts.of = append(experts.of, Sequential{in.Linear(n, width), GELU{}, in.Linear(width, n)})
		wide.of = append(wide.of, Sequential{in.Linear(n, 1024>>(2*i)), GELU{}, in.Linear(1024>>(2*i), n)})
	}
	for _, m := range []struct {
		name  string
		loss  func(t *Tape, x *Variable) *Variable
		input []int
	}{
		{"resnet, projections", picture([]Layer{residual(8, 16), ReLU{}, residual(16, 16), ReLU{}, residual(16, 8), ReLU{}}, 8), []int{4, 8, 16, 16}},
		{"inception", picture([]Layer{inception(8), inception(40)}, 40), []int{4, 8, 16, 16}},
		{"attention of q, k, v", func(t *Tape, x *Variable) *Variable {
			h := t.Reshape(trunk.Forward(t, x), 4, 16, n)
			return t.Sum(t.Square(out.Forward(t, t.ScaledDotProductAttention(q.Forward(t, h), k.Forward(t, h), v.Forward(t, h), AttentionConfig{}))))
		}, []int{64, n}},
		{"losses, large and small", losses(large, small), []int{rows, n}},
		{"losses, small and large", losses(small, large), []int{rows, n}},
		{"losses, large and deep", losses(large, deep), []int{rows, n}},
		{"losses, deep and large", losses(deep, large), []int{rows, n}},
		{"experts", func(t *Tape, x *Variable) *Variable { return t.Sum(t.Square(experts.Forward(t, x))) }, []int{rows, n}},
		{"experts, the widest first", func(t *Tape, x *Variable) *Variable { return t.Sum(t.Square(wide.Forward(t, x))) }, []int{rows, n}},
	} {
		require.NoError(t, in.Err())
		data := make([]float32, elements(m.input))
		random := rand.New(rand.NewPCG(1, 2))
		for i := range data {
			data[i] = float32(random.NormFloat64())
		}
		x := upload(b, data, m.input...)
		record := func(t *Tape) *Variable { return m.loss(t, t.Input(x)) }
		b.orderRun(record, func([]node) {}) // the runtime's own memory is there now
		forward, reverse, want := b.orderRun(record, func([]node) {})
		_, chosen, grads := b.orderRun(record, nil)
		requireSameBits(t, want, grads, m.name)
		best, worst, count := reverse, reverse, 0
		for i := range orders {
			_, peak, grads := b.orderRun(record, func(nodes []node) {
				count = len(nodes)
				otherOrder(nodes, random, i%2 == 0)
			})
			best, worst = min(best, peak), max(worst, peak)
			requireSameBits(t, want, grads, "%s, order %d", m.name, i)
		}
		t.Logf("%s, %d nodes: %d bytes in the forward pass; in the backward pass %d in reverse, %d as chosen, %d in the best of %d orders, %d in the worst", m.name, count, forward, reverse, chosen, best, orders, worst)
		assert.LessOrEqual(t, chosen, reverse, m.name)
		assert.LessOrEqual(t, float64(max(forward, chosen)), 1.06*float64(max(forward, best)), m.name)
	}
	require.NoError(t, in.Close())
}

// branches reads its argument in each of its chains, and returns the sum of what they give, or joins it.
type branches struct {
	unnamed
	of  []Sequential
	sum bool
}

func (l branches) Forward(t *Tape, x *Variable) *Variable {
	defer x.spare()()
	return t.Frame(func() *Variable {
		var ys []*Variable
		for _, s := range l.of {
			ys = append(ys, s.Forward(t, x))
		}
		if !l.sum {
			return t.Cat(1, ys...)
		}
		y := ys[0]
		for _, z := range ys[1:] {
			y = t.Add(y, z)
		}
		return y
	})
}

// TestOtherOrdersOfRandomGraphs tells what other orders save in graphs that are nothing like a model, where gradients are the same to the bit, too.
func TestOtherOrdersOfRandomGraphs(t *testing.T) {
	b := open(t, 64<<20)
	graphs, orders := rounds(60, 10), rounds(30, 10)
	random := rand.New(rand.NewPCG(24, 11))
	better, worse, most, all := 0, 0, 0.0, 0
	for i := range graphs {
		g := newGraph(random, 4+random.IntN(8))
		if g.lossNeeds() == 0 {
			continue
		}
		all++
		run := func(reorder func(nodes []node)) (peak int64, bits [][]uint64) {
			ts, err := g.tensors(b)
			require.NoError(t, err)
			ps, err := g.parameters(ts)
			require.NoError(t, err)
			tape := NewTape(b.ctx, b.rt)
			tape.inRecordedOrder = reorder != nil
			vs, loss := g.forward(tape, ts, ps)
			require.NoError(t, tape.Err())
			if reorder != nil {
				reorder(tape.nodes)
			}
			b.cache.ResetPeakStats()
			_, err = tape.Backward(loss)
			require.NoError(t, err)
			peak = b.cache.MaxMemoryAllocated() - b.ownBytes
			for _, v := range vs[:len(g.leaves)] {
				if v.Grad() != nil {
					bits = append(bits, b.bitsOf(v.Grad()))
				}
			}
			require.NoError(t, tape.Close())
			require.NoError(t, releaseAll(ts, ps))
			return peak, bits
		}
		reverse, want := run(func([]node) {})
		chosen, bits := run(nil)
		require.Equal(t, want, bits, "graph %d:\n%v", i, g)
		if chosen > reverse {
			worse++
		}
		best := reverse
		for k := range orders {
			peak, bits := run(func(nodes []node) { otherOrder(nodes, random, k%2 == 0) })
			require.Equal(t, want, bits, "graph %d:\n%v", i, g)
			best = min(best, peak)
		}
		if best < reverse {
			better++
			most = max(most, 1-float64(best)/float64(reverse))
		}
	}
	t.Logf("in %d of %d graphs one of %d orders holds less than the reverse order, by %.1f %% at most; in %d the chosen one holds more", better, all, orders, 100*most, worse)
	assert.Zero(t, worse)
	assert.Positive(t, all)
}
