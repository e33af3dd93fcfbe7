package autograd_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// attentionCase is an attention of random size, with random options.
type attentionCase struct {
	b             *tapetest.Bench
	random        *rand.Rand
	q, k, v, mask []int // shapes; mask may be nil
	cfg           autograd.AttentionConfig
	hidden        bool // the mask is of uint8
	values        [][]float64
	flags         []uint8
}

func newAttentionCase(b *tapetest.Bench, random *rand.Rand) *attentionCase {
	c := &attentionCase{b: b, random: random}
	size := func() int { return []int{1, 2, 3, 5, 31, 32, 33, 65, 70, 130}[random.IntN(10)] }
	l, s, e, w := size(), size(), 1+random.IntN(9), 1+random.IntN(9)
	if random.IntN(6) == 0 {
		e, w = 70, 66 // more columns than a block of the GPU's has
	}
	batch := [][]int{{}, {3}, {2, 2}, {2, 1, 2}}[random.IntN(4)]
	narrowed := func() []int {
		n := slices.Clone(batch)
		for i := range n {
			if random.IntN(4) == 0 {
				n[i] = 1
			}
		}
		return n[random.IntN(len(n)+1)/2:]
	}
	c.q, c.k, c.v = append(slices.Clone(batch), l, e), append(narrowed(), s, e), append(narrowed(), s, w)
	switch random.IntN(4) {
	case 0:
		c.cfg.Causal = true
	case 1, 2:
		c.hidden = random.IntN(2) == 0
		c.mask = append(narrowed(), []int{l, 1}[random.IntN(2)], s)
	}
	if random.IntN(3) == 0 {
		c.cfg.Scale = 0.3
	}
	for _, shape := range [][]int{c.q, c.k, c.v, c.mask} {
		data := make([]float64, len(zeros(shape...).data))
		for i := range data {
			data[i] = random.NormFloat64()
			if shape != nil && len(c.values) == 3 && random.IntN(4) == 0 {
				data[i] = math.Inf(-1)
			}
			if len(c.values) == 3 {
				c.flags = append(c.flags, uint8(random.IntN(3)))
			}
		}
		if len(c.values) == 3 && shape != nil { // each query sees the first key
			for i := 0; i < len(data); i += s {
				data[i], c.flags[i] = 0.5, 1
			}
		}
		c.values = append(c.values, data)
	}
	return c
}

// run gives the result and the gradients of q, k, v, and of a mask that is added, of f.
func (c *attentionCase) run(f func(t *autograd.Tape, q, k, v, mask *autograd.Variable) *autograd.Variable) (all [][]float64) {
	t := c.b.T
	tape := autograd.NewTape(c.b.Ctx, c.b.RT)
	defer func() { require.NoError(t, tape.Close()) }()
	var vs []*autograd.Variable
	for i, shape := range [][]int{c.q, c.k, c.v, c.mask} {
		switch {
		case shape == nil && i == 3:
			vs = append(vs, nil)
		case i == 3 && c.hidden:
			vs = append(vs, autograd.Upload(tape, c.flags, shape...))
		default:
			x, err := tensor.FromSlice(c.b.Ctx, c.b.RT, c.values[i], shape...)
			require.NoError(t, err)
			vs = append(vs, tape.Leaf(x))
			require.NoError(t, x.Release())
		}
	}
	y := f(tape, vs[0], vs[1], vs[2], vs[3]).Keep()
	require.NoError(t, tape.Err())
	weights := make([]float64, y.Value().Elements())
	for i := range weights {
		weights[i] = math.Sin(float64(i))
	}
	_, err := tape.Backward(tape.Sum(tape.Mul(y, autograd.Upload(tape, weights, y.Shape()...))))
	require.NoError(t, err)
	all = [][]float64{tapetest.Read[float64](c.b, y.Value())}
	for _, v := range vs {
		if v != nil && v.Grad() != nil {
			all = append(all, tapetest.Read[float64](c.b, v.Grad()))
		}
	}
	return all
}

// parts is the attention as products and a softmax.
func (c *attentionCase) parts(t *autograd.Tape, q, k, v, mask *autograd.Variable) *autograd.Variable {
	scale := c.cfg.Scale
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(c.q[len(c.q)-1]))
	}
	s := t.MulScalar(t.MatMul(q, k, tensor.TransB), scale)
	l, n := c.q[len(c.q)-2], c.k[len(c.k)-2]
	switch {
	case c.hidden && mask != nil:
		data := make([]float64, len(c.flags))
		for i, f := range c.flags {
			if f == 0 {
				data[i] = math.Inf(-1)
			}
		}
		s = t.Add(s, autograd.Upload(t, data, c.mask...))
	case mask != nil:
		s = t.Add(s, mask)
	case c.cfg.Causal:
		data := make([]float64, l*n)
		for i := range data {
			if i%n > i/n {
				data[i] = math.Inf(-1)
			}
		}
		s = t.Add(s, autograd.Upload(t, data, l, n))
	}
	return t.MatMul(t.Softmax(s), v)
}

// TestAttentionAgainstItsParts compares results and gradients with those of the operations that
// attention is made of.
func TestAttentionAgainstItsParts(t *testing.T) {
	b := tapetest.Open(t, 256<<20)
	cases := 60
	if testing.Short() {
		cases = 15
	}
	for i := range cases {
		c := newAttentionCase(b, rand.New(rand.NewPCG(uint64(i), 3)))
		want := c.run(c.parts)
		got := c.run(func(t *autograd.Tape, q, k, v, mask *autograd.Variable) *autograd.Variable {
			cfg := c.cfg
			cfg.Mask = mask
			return t.ScaledDotProductAttention(q, k, v, cfg)
		})
		require.Len(t, got, len(want))
		for j := range want {
			tapetest.RequireNear(t, want[j], got[j], "case %d, array %d: %v %v %v, mask %v, %+v", i, j, c.q, c.k, c.v, c.mask, c.cfg)
		}
		require.Zero(t, b.Bytes(), "case %d left memory behind", i)
	}
}

// TestSelfAttention compares it with an attention of copies, batch first or not, with a mask or
// causal.
func TestSelfAttention(t *testing.T) {
	b := tapetest.Open(t, 256<<20)
	random := rand.New(rand.NewPCG(5, 6))
	const steps, batch, heads, head = 37, 2, 3, 4
	data := make([]float64, steps*batch*3*heads*head)
	for i := range data {
		data[i] = random.NormFloat64()
	}
	seen := make([]uint8, batch*steps) // keys of each sequence
	for i := range seen {
		seen[i] = uint8(random.IntN(2))
	}
	for _, first := range []bool{true, false} {
		for _, masked := range []bool{false, true} {
			shape, order := []int{steps, batch, 3 * heads * head}, []int{2, 1, 3, 0, 4}
			if first {
				shape, order = []int{batch, steps, 3 * heads * head}, []int{2, 0, 3, 1, 4}
			}
			run := func(f func(t *autograd.Tape, x *autograd.Variable, cfg autograd.AttentionConfig) *autograd.Variable) [][]float64 {
				tape := autograd.NewTape(b.Ctx, b.RT)
				defer func() { require.NoError(t, tape.Close()) }()
				cfg := autograd.AttentionConfig{Causal: !masked}
				if masked {
					cfg.Mask = autograd.Upload(tape, seen, batch, 1, 1, steps)
				}
				x := tape.Leaf(tapetest.Upload(b, data, shape...))
				y := f(tape, x, cfg).Keep()
				require.NoError(t, tape.Err())
				_, err := tape.Backward(tape.Sum(tape.Mul(y, tape.Sin(y))))
				require.NoError(t, err)
				return [][]float64{tapetest.Read[float64](b, y.Value()), tapetest.Read[float64](b, x.Grad())}
			}
			want := run(func(t *autograd.Tape, x *autograd.Variable, cfg autograd.AttentionConfig) *autograd.Variable {
				// (3, batch, heads, steps, head)
				qkv := t.Permute(t.Reshape(x, shape[0], shape[1], 3, heads, head), order...)
				part := func(i int) *autograd.Variable { return t.Reshape(t.Narrow(qkv, 0, i, 1), batch, heads, steps, head) }
				y := t.ScaledDotProductAttention(part(0), part(1), part(2), cfg)
				if first {
					y = t.Permute(y, 0, 2, 1, 3)
				} else {
					y = t.Permute(y, 2, 0, 1, 3)
				}
				return t.Reshape(y, shape[0], shape[1], heads*head)
			})
			got := run(func(t *autograd.Tape, x *autograd.Variable, cfg autograd.AttentionConfig) *autograd.Variable {
				return t.SelfAttention(x, heads, first, cfg)
			})
			for i := range want {
				tapetest.RequireNear(t, want[i], got[i], "batch first %v, masked %v, array %d", first, masked, i)
			}
		}
	}
}

// TestAttentionOfNothing: the result and the gradients are 0 for queries that see no key, and
// without any keys or queries.
func TestAttentionOfNothing(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for _, sizes := range [][4]int{{2, 3, 4, 5}, {2, 0, 4, 5}, {0, 3, 4, 5}, {2, 3, 0, 5}, {2, 3, 4, 0}} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		ones := func(shape ...int) *autograd.Variable {
			x, err := b.RT.Full(b.Ctx, 1, tensor.Float64, shape...)
			require.NoError(t, err)
			defer x.Release()
			return tape.Leaf(x)
		}
		q, k, v := ones(sizes[0], sizes[2]), ones(sizes[1], sizes[2]), ones(sizes[1], sizes[3])
		cfg := autograd.AttentionConfig{Mask: autograd.Upload(tape, make([]uint8, sizes[1]), sizes[1])}
		if sizes[2] == 0 {
			cfg.Mask = nil // every key counts the same
		}
		y := tape.ScaledDotProductAttention(q, k, v, cfg).Keep()
		_, err := tape.Backward(tape.Sum(y))
		require.NoError(t, err)
		want, share := 0.0, 0.0
		if sizes[2] == 0 {
			want, share = 1, float64(sizes[0])/float64(sizes[1])
		}
		for _, got := range tapetest.Read[float64](b, y.Value()) {
			require.Equal(t, want, got, "%v", sizes)
		}
		for _, x := range []*autograd.Variable{q, k} {
			for _, got := range tapetest.Read[float64](b, x.Grad()) {
				require.Zero(t, got, "%v", sizes)
			}
		}
		for _, got := range tapetest.Read[float64](b, v.Grad()) {
			require.InDelta(t, share, got, 1e-15, "%v", sizes)
		}
		require.NoError(t, tape.Close())
	}
}

// TestGroupedAttention compares it with an attention in which each shared head of keys and values
// is repeated.
func TestGroupedAttention(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	random := rand.New(rand.NewPCG(7, 8))
	data := make([]float64, 2*6*5*4)
	for i := range data {
		data[i] = random.NormFloat64()
	}
	run := func(f func(t *autograd.Tape, q, k, v, mask *autograd.Variable) *autograd.Variable) (all [][]float64) {
		tape := autograd.NewTape(b.Ctx, b.RT)
		defer func() { require.NoError(t, tape.Close()) }()
		leaves := []*autograd.Variable{tape.Leaf(tapetest.Upload(b, data, 2, 6, 5, 4)), tape.Leaf(tapetest.Upload(b, data[:2*2*5*4], 2, 2, 5, 4)),
			tape.Leaf(tapetest.Upload(b, data[7:2*2*5*4+7], 2, 2, 5, 4)), tape.Leaf(tapetest.Upload(b, data[:6*5*5], 6, 5, 5))}
		y := f(tape, leaves[0], leaves[1], leaves[2], leaves[3]).Keep()
		require.NoError(t, tape.Err())
		_, err := tape.Backward(tape.Sum(tape.Mul(y, y)))
		require.NoError(t, err)
		for _, l := range leaves {
			all = append(all, tapetest.Read[float64](b, l.Grad()))
		}
		return append(all, tapetest.Read[float64](b, y.Value()))
	}
	want := run(func(t *autograd.Tape, q, k, v, mask *autograd.Variable) *autograd.Variable {
		often := func(x *autograd.Variable) *autograd.Variable {
			index := autograd.Upload(t, []int32{0, 0, 0, 1, 1, 1})
			return t.IndexSelect(x, 1, index)
		}
		return t.ScaledDotProductAttention(q, often(k), often(v), autograd.AttentionConfig{Mask: mask})
	})
	got := run(func(t *autograd.Tape, q, k, v, mask *autograd.Variable) *autograd.Variable {
		return t.ScaledDotProductAttention(q, k, v, autograd.AttentionConfig{Mask: mask, GQA: true})
	})
	for i := range want {
		tapetest.RequireNear(t, want[i], got[i], "array %d", i)
	}
}

// TestMultiHeadAttention: one sequence, projected in one product, gives the same result as three,
// projected in a product each; also without a batch.
func TestMultiHeadAttention(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	random := rand.New(rand.NewPCG(9, 1))
	data := make([]float64, 2*5*6)
	for i := range data {
		data[i] = random.NormFloat64()
	}
	for _, first := range []bool{false, true} {
		options := []nn.LayerOption{nn.Causal()}
		shape := []int{5, 2, 6}
		if first {
			options, shape = append(options, nn.BatchFirst()), []int{2, 5, 6}
		}
		in := nn.Init(b.Ctx, b.RT, nn.Seed(1), nn.Dtype(tensor.Float64))
		m := in.MultiHeadAttention(6, 2, options...)
		require.NoError(t, in.Err())
		run := func(shape []int, f func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable) (all [][]float64) {
			tape := autograd.NewTape(b.Ctx, b.RT)
			defer func() { require.NoError(t, tape.Close()) }()
			x := tape.Leaf(tapetest.Upload(b, data[:tapetest.Elements(shape)], shape...))
			y := f(tape, x).Keep()
			require.NoError(t, tape.Err())
			_, err := tape.Backward(tape.Sum(tape.Mul(y, tape.Sin(y))))
			require.NoError(t, err)
			for _, p := range m.Parameters() {
				all = append(all, tapetest.Read[float64](b, p.Grad()))
			}
			require.NoError(t, m.Parameters().ZeroGrad(b.Ctx))
			return append(all, tapetest.Read[float64](b, y.Value()), tapetest.Read[float64](b, x.Grad()))
		}
		compare := func(what string, want, got [][]float64) {
			for i := range want {
				tapetest.RequireNear(t, want[i], got[i], "%s: batch first %v, array %d", what, first, i)
			}
		}
		self := func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return m.Forward(t, x) }
		compare("three sequences", run(shape, self), run(shape, func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			other := t.MulScalar(x, 1)
			return m.Attend(t, x, other, other, autograd.AttentionConfig{Causal: true})
		}))
		single := []int{5, 1, 6}
		if first {
			single = []int{1, 5, 6}
		}
		compare("no batch", run(single, self), run([]int{5, 6}, self))
		tape := autograd.NoGrad(b.Ctx, b.RT)
		before := b.Bytes()
		m.Forward(tape, autograd.Upload(tape, data, shape...)).Release()
		require.NoError(t, tape.Err())
		require.LessOrEqual(t, b.Bytes()-before, int64(512), "the argument is left")
		require.NoError(t, tape.Close())
		require.NoError(t, in.Close())
	}
}

func TestAttentionRefuses(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for name, c := range map[string]struct {
		f    func(t *autograd.Tape, x func(shape ...int) *autograd.Variable)
		want error
	}{
		"other keys": {func(t *autograd.Tape, x func(...int) *autograd.Variable) {
			t.ScaledDotProductAttention(x(2, 3), x(2, 4), x(2, 3), autograd.AttentionConfig{})
		}, tensor.ErrShape},
		"more values": {func(t *autograd.Tape, x func(...int) *autograd.Variable) {
			t.ScaledDotProductAttention(x(2, 3), x(2, 3), x(3, 3), autograd.AttentionConfig{})
		}, tensor.ErrShape},
		"vectors": {func(t *autograd.Tape, x func(...int) *autograd.Variable) {
			t.ScaledDotProductAttention(x(3), x(2, 3), x(2, 3), autograd.AttentionConfig{})
		}, tensor.ErrShape},
		"batches of two sizes": {func(t *autograd.Tape, x func(...int) *autograd.Variable) {
			t.ScaledDotProductAttention(x(2, 2, 3), x(3, 2, 3), x(2, 3), autograd.AttentionConfig{})
		}, tensor.ErrShape},
		"a mask of more": {func(t *autograd.Tape, x func(...int) *autograd.Variable) {
			t.ScaledDotProductAttention(x(2, 3), x(2, 3), x(2, 3), autograd.AttentionConfig{Mask: x(3, 2, 2)})
		}, tensor.ErrShape},
		"causal and a mask": {func(t *autograd.Tape, x func(...int) *autograd.Variable) {
			t.ScaledDotProductAttention(x(2, 3), x(2, 3), x(2, 3), autograd.AttentionConfig{Mask: x(2, 2), Causal: true})
		}, autograd.ErrInvalid},
		"a mask of int32": {func(t *autograd.Tape, x func(...int) *autograd.Variable) {
			t.ScaledDotProductAttention(x(2, 3), x(2, 3), x(2, 3), autograd.AttentionConfig{Mask: autograd.Upload(t, []int32{1, 1}, 2)})
		}, tensor.ErrDtype},
		"groups of heads": {func(t *autograd.Tape, x func(...int) *autograd.Variable) {
			t.ScaledDotProductAttention(x(3, 2, 3), x(2, 2, 3), x(2, 2, 3), autograd.AttentionConfig{GQA: true})
		}, tensor.ErrShape},
		"heads of a half": {func(t *autograd.Tape, x func(...int) *autograd.Variable) {
			t.SelfAttention(x(2, 1, 6), 4, true, autograd.AttentionConfig{})
		}, tensor.ErrShape},
		"no third": {func(t *autograd.Tape, x func(...int) *autograd.Variable) {
			t.SelfAttention(x(2, 1, 7), 1, true, autograd.AttentionConfig{})
		}, tensor.ErrShape},
		"groups of one tensor": {func(t *autograd.Tape, x func(...int) *autograd.Variable) {
			t.SelfAttention(x(2, 1, 6), 1, true, autograd.AttentionConfig{GQA: true})
		}, autograd.ErrInvalid},
		"no layer": {func(t *autograd.Tape, x func(...int) *autograd.Variable) {
			(*nn.MultiHeadAttention)(nil).Forward(t, x(2, 6))
		}, autograd.ErrInvalid},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		c.f(tape, func(shape ...int) *autograd.Variable {
			return autograd.Upload(tape, make([]float32, tapetest.Elements(shape)), shape...)
		})
		assert.ErrorIs(t, tape.Close(), c.want, name)
	}
}
