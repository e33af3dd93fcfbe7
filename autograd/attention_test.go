package autograd

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
)

// attentionCase is an attention of random size, with all that may be asked of it.
type attentionCase struct {
	b             *bench
	random        *rand.Rand
	q, k, v, mask []int // shapes; mask may be nil
	cfg           AttentionConfig
	hidden        bool // the mask is of uint8
	values        [][]float64
	flags         []uint8
}

func newAttentionCase(b *bench, random *rand.Rand) *attentionCase {
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
func (c *attentionCase) run(f func(t *Tape, q, k, v, mask *Variable) *Variable) (all [][]float64) {
	t := c.b.t
	tape := NewTape(c.b.ctx, c.b.rt)
	defer func() { require.NoError(t, tape.Close()) }()
	var vs []*Variable
	for i, shape := range [][]int{c.q, c.k, c.v, c.mask} {
		switch {
		case shape == nil && i == 3:
			vs = append(vs, nil)
		case i == 3 && c.hidden:
			vs = append(vs, Upload(tape, c.flags, shape...))
		default:
			x, err := tensor.FromSlice(c.b.ctx, c.b.rt, c.values[i], shape...)
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
	_, err := tape.Backward(tape.Sum(tape.Mul(y, Upload(tape, weights, y.Shape()...))))
	require.NoError(t, err)
	all = [][]float64{read[float64](c.b, y.Value())}
	for _, v := range vs {
		if v != nil && v.Grad() != nil {
			all = append(all, read[float64](c.b, v.Grad()))
		}
	}
	return all
}

// parts is the attention as products and a softmax.
func (c *attentionCase) parts(t *Tape, q, k, v, mask *Variable) *Variable {
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
		s = t.Add(s, Upload(t, data, c.mask...))
	case mask != nil:
		s = t.Add(s, mask)
	case c.cfg.Causal:
		data := make([]float64, l*n)
		for i := range data {
			if i%n > i/n {
				data[i] = math.Inf(-1)
			}
		}
		s = t.Add(s, Upload(t, data, l, n))
	}
	return t.MatMul(t.Softmax(s), v)
}

// TestAttentionAgainstItsParts compares results and gradients with those of the operations that attention is made of.
func TestAttentionAgainstItsParts(t *testing.T) {
	b := open(t, 256<<20)
	cases := 60
	if testing.Short() {
		cases = 15
	}
	for i := range cases {
		c := newAttentionCase(b, rand.New(rand.NewPCG(uint64(i), 3)))
		want := c.run(c.parts)
		got := c.run(func(t *Tape, q, k, v, mask *Variable) *Variable {
			cfg := c.cfg
			cfg.Mask = mask
			return t.ScaledDotProductAttention(q, k, v, cfg)
		})
		require.Len(t, got, len(want))
		for j := range want {
			requireNear(t, want[j], got[j], "case %d, array %d: %v %v %v, mask %v, %+v", i, j, c.q, c.k, c.v, c.mask, c.cfg)
		}
		require.Zero(t, b.bytes(), "case %d left memory behind", i)
	}
}

func requireNear(t *testing.T, want, got []float64, format string, args ...any) {
	t.Helper()
	require.Len(t, got, len(want))
	for i, w := range want {
		if !near(w, got[i], 1e-11) {
			require.Failf(t, "wrong", "element %d is %v, want %v: "+format, append([]any{i, got[i], w}, args...)...)
		}
	}
}
