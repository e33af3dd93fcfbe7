package compose

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/tensor"
)

// part is a random function of matrices of one shape: operations, and parts in parts.
type part struct {
	id    int
	steps []step
}

// step applies an operation, or a part, to the a-th and b-th of the values that it sees, counted in
// a circle, with the w-th of the layers.
type step struct {
	id, op, a, b, w int
	inner           *part
}

// randomPart numbers its steps, and those of the parts in it, from next on.
func randomPart(r *rand.Rand, depth int, next *int) *part {
	p := &part{id: *next}
	for range 2 + r.IntN(5) {
		s := step{id: *next, op: r.IntN(len(operations)), a: r.IntN(60), b: r.IntN(60), w: r.IntN(2)}
		*next++
		if depth > 0 && r.IntN(3) == 0 {
			s.inner = randomPart(r, depth-1, next)
		}
		p.steps = append(p.steps, s)
	}
	return p
}

// examplePart is a chain of Gated layers, of which the first and the last are one.
func examplePart() *part {
	op := slices.IndexFunc(operations, func(o operation) bool { return o.kind == gated })
	p := new(part)
	for i := range 3 {
		p.steps = append(p.steps, step{id: i, op: op, a: i, w: i % 2})
	}
	return p
}

// without returns the part without the steps of these numbers.
func (p *part) without(ids []int) *part {
	q := &part{id: p.id}
	for _, s := range p.steps {
		if slices.Contains(ids, s.id) {
			continue
		}
		if s.inner != nil {
			s.inner = s.inner.without(ids)
		}
		q.steps = append(q.steps, s)
	}
	return q
}

// each yields the steps, and those of the parts in it.
func (p *part) each(yield func(step) bool) bool {
	for _, s := range p.steps {
		if !yield(s) || s.inner != nil && !s.inner.each(yield) {
			return false
		}
	}
	return true
}

// write writes the part as a program, and returns the name of its result.
func (p *part) write(w *strings.Builder, indent string, vs []string) string {
	vs = slices.Clone(vs)
	for _, s := range p.steps {
		a, b, v := vs[s.a%len(vs)], vs[s.b%len(vs)], fmt.Sprintf("v%d", s.id)
		if s.inner != nil {
			fmt.Fprintf(w, "%s%s = part {\n", indent, v)
			fmt.Fprintf(w, "%s}, which is %s\n", indent, s.inner.write(w, indent+"  ", vs))
		} else {
			fmt.Fprintf(w, "%s%s = %s\n", indent, v, strings.NewReplacer("$a", a, "$b", b, "$w", fmt.Sprint(s.w)).Replace(operations[s.op].text))
		}
		vs = append(vs, v)
	}
	return vs[len(vs)-1]
}

// run computes the part on a tape of m's.
func (p *part) run(m *model, t *autograd.Tape, vs []*autograd.Variable) *autograd.Variable {
	outer := len(vs)
	vs = slices.Clone(vs)
	last := make([]int, outer+len(p.steps)) // the step that reads a value last
	for i, s := range p.steps {
		last[s.a%(outer+i)], last[s.b%(outer+i)] = i, i
		for j := range outer + i {
			if s.inner != nil {
				last[j] = i
			}
		}
	}
	last[len(last)-1] = len(p.steps) // the result
	for i, s := range p.steps {
		ai, bi := s.a%len(vs), s.b%len(vs)
		a, b := vs[ai], vs[bi]
		if s.inner != nil {
			seen := slices.Clone(vs)
			vs = append(vs, m.apart(t, s.inner, seen))
		} else {
			if m.has(once) && ai >= outer && last[ai] == i && operations[s.op].once && a != b && count(vs, a) == 1 {
				a.Once()
			}
			vs = append(vs, m.apply(t, s, a, b))
		}
		for j := outer; m.has(release) && t.Training() && j < len(vs); j++ {
			if last[j] <= i && count(vs, vs[j]) == 1 {
				vs[j].Release()
			}
		}
	}
	if len(p.steps) == 0 {
		return t.MulScalar(vs[len(vs)-1], 1)
	}
	return vs[len(vs)-1]
}

func count(vs []*autograd.Variable, v *autograd.Variable) (n int) {
	for _, w := range vs {
		if w == v {
			n++
		}
	}
	return n
}

// operation is a function of two values of (rows, width) in a step.
type operation struct {
	text string
	once bool // it reads a once, and no other operation does in between
	// kind and layer are of the layers that it computes with, which are the w-th ones; apply may be
	// nil then.
	kind  string
	layer func(in *nn.Initializer, width int) nn.Layer
	apply func(_ *model, t *autograd.Tape, l nn.Layer, a, b *autograd.Variable) *autograd.Variable
}

// operations are those of a program.
var operations = []operation{
	{text: "$a + $b", once: true, apply: func(_ *model, t *autograd.Tape, _ nn.Layer, a, b *autograd.Variable) *autograd.Variable {
		return t.Add(a, b)
	}},
	{text: "tanh($a) * $b", once: true, apply: func(_ *model, t *autograd.Tape, _ nn.Layer, a, b *autograd.Variable) *autograd.Variable {
		return t.Mul(t.Tanh(a), b)
	}},
	{text: "softmax($b · $aᵀ) · $b", once: true, apply: func(_ *model, t *autograd.Tape, _ nn.Layer, a, b *autograd.Variable) *autograd.Variable {
		return t.MatMul(t.Softmax(t.MatMul(b, a, tensor.TransB)), b)
	}},
	{text: "dropout($a)", once: true, apply: func(_ *model, t *autograd.Tape, _ nn.Layer, a, _ *autograd.Variable) *autograd.Variable {
		return t.Dropout(a, 0.4)
	}},
	{text: "log_softmax($a)", once: true, apply: func(_ *model, t *autograd.Tape, _ nn.Layer, a, _ *autograd.Variable) *autograd.Variable {
		return t.LogSoftmax(a)
	}},
	{text: "detach($a) * $b", apply: func(_ *model, t *autograd.Tape, _ nn.Layer, a, b *autograd.Variable) *autograd.Variable {
		return t.Mul(t.Detach(a), b)
	}},
	{text: "$a + numbers", once: true, apply: func(m *model, t *autograd.Tape, _ nn.Layer, a, _ *autograd.Variable) *autograd.Variable {
		return t.Add(a, t.Input(m.constant))
	}},
	{text: "attention($a, $b, $a)", apply: func(_ *model, t *autograd.Tape, _ nn.Layer, a, b *autograd.Variable) *autograd.Variable {
		return t.ScaledDotProductAttention(a, b, a, autograd.AttentionConfig{})
	}},
	{text: "causal_attention($a, $b, $a) with dropout", apply: func(_ *model, t *autograd.Tape, _ nn.Layer, a, b *autograd.Variable) *autograd.Variable {
		return t.ScaledDotProductAttention(a, b, a, autograd.AttentionConfig{Causal: true, Dropout: 0.3})
	}},
	{text: "$a * -0.5", once: true, apply: func(_ *model, t *autograd.Tape, _ nn.Layer, a, _ *autograd.Variable) *autograd.Variable {
		return t.MulScalar(a, -0.5)
	}},
	{text: "gelu($a)", once: true, apply: func(_ *model, t *autograd.Tape, _ nn.Layer, a, _ *autograd.Variable) *autograd.Variable {
		return t.GELU(a)
	}},
	{text: "relu($a)", once: true, apply: func(_ *model, t *autograd.Tape, _ nn.Layer, a, _ *autograd.Variable) *autograd.Variable {
		return t.ReLU(a)
	}},
	{text: "$a with its first column behind", apply: func(m *model, t *autograd.Tape, _ nn.Layer, a, _ *autograd.Variable) *autograd.Variable {
		parts := t.Split(a, 1, 1, m.width-1)
		return t.Cat(1, parts[1], parts[0])
	}},
	{text: "$aᵀᵀ", apply: func(_ *model, t *autograd.Tape, _ nn.Layer, a, _ *autograd.Variable) *autograd.Variable {
		return t.Transpose(t.Transpose(a))
	}},
	{text: "own_square($a)", once: true, apply: func(_ *model, t *autograd.Tape, _ nn.Layer, a, _ *autograd.Variable) *autograd.Variable {
		return ownSquare(t, a)
	}},
	{text: "linear$w($a)", once: true, kind: "linear", layer: linear},
	{text: "relu($a · linear$wᵀ + sum($b))", once: true, kind: "linear", layer: linear,
		apply: func(_ *model, t *autograd.Tape, l nn.Layer, a, b *autograd.Variable) *autograd.Variable {
			return t.LinearReLU(a, t.Param(l.(*nn.Linear).Weight), t.Sum(b, 0))
		}},
	{text: "$a + linear$w.bias", once: true, kind: "linear", layer: linear,
		apply: func(_ *model, t *autograd.Tape, l nn.Layer, a, _ *autograd.Variable) *autograd.Variable {
			return t.AddBias(a, t.Param(l.(*nn.Linear).Bias))
		}},
	{text: "layer_norm$w($a)", once: true, kind: "layer_norm", layer: layerNorm},
	{text: "sum * layer_norm$w($a + $b)", kind: "layer_norm", layer: layerNorm,
		apply: func(_ *model, t *autograd.Tape, l nn.Layer, a, b *autograd.Variable) *autograd.Variable {
			sum, norm := l.(*nn.LayerNorm).ForwardAdd(t, a, b)
			return t.Mul(sum, norm)
		}},
	{text: "batch_norm$w($a)", once: true, kind: batchNorm, layer: func(in *nn.Initializer, n int) nn.Layer { return in.BatchNorm(n) }},
	{text: "rms_norm$w($a)", once: true, kind: "rms_norm", layer: func(in *nn.Initializer, n int) nn.Layer { return in.RMSNorm(n) }},
	{text: "group_norm$w($a)", once: true, kind: "group_norm", layer: func(in *nn.Initializer, n int) nn.Layer { return in.GroupNorm(1, n) }},
	{text: "$a + embedding$w", once: true, kind: "embedding", layer: func(in *nn.Initializer, n int) nn.Layer { return in.Embedding(5, n) },
		apply: func(m *model, t *autograd.Tape, l nn.Layer, a, _ *autograd.Variable) *autograd.Variable {
			return t.Add(a, l.Forward(t, t.Input(m.index)))
		}},
	{text: "conv$w($a)", kind: "conv", layer: func(in *nn.Initializer, _ int) nn.Layer {
		return in.Conv1d(1, 1, 3, nn.Padding(1))
	}, apply: columns},
	{text: "conv_transpose$w($a)", kind: "conv_transpose", layer: func(in *nn.Initializer, _ int) nn.Layer {
		return in.ConvTranspose1d(1, 1, 3, nn.Padding(1))
	}, apply: columns},
	{text: "sequential$w($a)", kind: "sequential", layer: func(in *nn.Initializer, n int) nn.Layer {
		return nn.Sequential{nn.ReLU{}, in.Linear(n, n), nn.LayerOf(twice{}), nn.Sequential{nn.Dropout{P: 0.3}, nn.ReLU{}}, nn.GELU{}, in.LayerNorm(n)}
	}},
	{text: "prelu$w($a)", once: true, kind: "prelu", layer: func(in *nn.Initializer, n int) nn.Layer { return in.PReLU(n) }},
	{text: "dropout2d($a)", apply: func(_ *model, t *autograd.Tape, _ nn.Layer, a, _ *autograd.Variable) *autograd.Variable {
		return t.Squeeze(t.Dropout2d(t.Unsqueeze(a, 1), 0.4), 1)
	}},
	{text: "instance_norm$w($a)", kind: "instance_norm", layer: func(in *nn.Initializer, _ int) nn.Layer {
		return in.InstanceNorm(1, nn.Affine())
	}, apply: columns},
	{text: "conv$w(edges($a))", kind: "edges", layer: func(in *nn.Initializer, _ int) nn.Layer {
		return nn.Sequential{nn.ReflectionPad1d{Padding: []int{0, 1}}, nn.ReplicationPad1d{Padding: []int{1, 0}}, in.Conv1d(1, 1, 3)}
	}, apply: columns},
	{text: "conv$w(twice as long $a)", kind: "upsample", layer: func(in *nn.Initializer, _ int) nn.Layer {
		return nn.Sequential{nn.Upsample{ScaleFactor: []float64{2}}, in.Conv1d(1, 1, 2, nn.Stride(2))}
	}, apply: columns},
	{text: "bilinear($a)", apply: func(_ *model, t *autograd.Tape, _ nn.Layer, a, _ *autograd.Variable) *autograd.Variable {
		y := t.Interpolate(t.Unsqueeze(t.Unsqueeze(a, 0), 0), tensor.InterpolateConfig{ScaleFactor: []float64{2}, Bilinear: true})
		return t.Squeeze(t.Squeeze(t.AvgPool2d(y, tensor.PoolingConfig{Kernel: []int{2}}), 0), 0)
	}},
	{text: "with$w($a, $b)", kind: "with", layer: func(in *nn.Initializer, n int) nn.Layer {
		return nn.Sequential{in.Linear(n, n), nn.Func(func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Mul(t.Tanh(x), x) })}
	}, apply: func(_ *model, t *autograd.Tape, l nn.Layer, a, b *autograd.Variable) *autograd.Variable {
		return nn.With(l, func(l nn.Layer, t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return t.Add(l.Forward(t, x), b)
		}).Forward(t, a)
	}},
	{text: "gated$w($a)", kind: gated, layer: func(in *nn.Initializer, n int) nn.Layer { return NewGated(in, n, n) }},
	{text: "lstm$w($a)", kind: "lstm", layer: func(in *nn.Initializer, n int) nn.Layer { return in.LSTM(n, n) }, apply: columns},
	{text: "gru$w($a)", kind: "gru", layer: func(in *nn.Initializer, n int) nn.Layer { return in.GRU(n, n) }, apply: columns},
	{text: "self_attention$w($a)", kind: "self_attention", layer: func(in *nn.Initializer, n int) nn.Layer { return in.MultiHeadAttention(n, 1) }, apply: columns},
}

const (
	batchNorm = "batch_norm"
	gated     = "gated" // the layer of an Example
)

func linear(in *nn.Initializer, n int) nn.Layer    { return in.Linear(n, n) }
func layerNorm(in *nn.Initializer, n int) nn.Layer { return in.LayerNorm(n) }

// columns applies a layer to (rows, 1, width): pictures of one channel, or a sequence.
func columns(_ *model, t *autograd.Tape, l nn.Layer, a, _ *autograd.Variable) *autograd.Variable {
	return t.Squeeze(l.Forward(t, t.Unsqueeze(a, 1)), 1)
}

// twice is a layer that reads its argument two times.
type twice struct{}

func (twice) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable { return t.Add(t.ReLU(x), t.MulScalar(x, 0.1)) })
}

// Gated is the layer of autograd.ExampleTape_Layer. Both must have the same code.
type Gated struct{ Weight, Gate *autograd.Parameter }

// NewGated makes a layer of n inputs and m outputs.
func NewGated(in *nn.Initializer, n, m int) *Gated {
	bound := 1 / math.Sqrt(float64(n))
	return &Gated{in.Uniform(-bound, bound, m, n), in.Uniform(-bound, bound, m, n)}
}

func (l *Gated) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Layer(l.Weight, "weight", func() *autograd.Variable {
		return t.Mul(t.Linear(x, t.Param(l.Weight), nil), t.Sigmoid(t.Linear(x, t.Param(l.Gate), nil)))
	})
}

func (l *Gated) Parameters() autograd.Parameters { return nn.ParametersOf(l) }

// ownSquare is an operation of the program's own, which saves a tensor of its own.
func ownSquare(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Func("OwnSquare", []*autograd.Variable{x}, func(c *autograd.Call) (*tensor.Tensor, error) {
		twice, err := c.Runtime().MulScalar(c.Context(), c.Input(0), 2)
		if err != nil {
			return nil, err
		}
		c.Save(twice)
		return c.Runtime().Square(c.Context(), c.Input(0))
	}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return c.Grads(c.Runtime().Mul(c.Context(), g, c.Saved()[0]))
	})
}
