package compose

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// part is a random function of matrices of one shape: operations, and parts in parts.
type part struct {
	id    int
	steps []step
}

// step applies an operation, or a part, to the a-th and b-th of the values that it sees, and to the w-th of the layers, all counted in a circle.
type step struct {
	id, op, a, b, w int
	inner           *part
}

const layers = 2

// randomPart numbers its steps, and those of the parts in it, from next on.
func randomPart(r *rand.Rand, depth int, next *int) *part {
	p := &part{id: *next}
	for range 2 + r.IntN(5) {
		s := step{id: *next, op: r.IntN(len(operations)), a: r.IntN(60), b: r.IntN(60), w: r.IntN(layers)}
		*next++
		if depth > 0 && r.IntN(3) == 0 {
			s.inner = randomPart(r, depth-1, next)
		}
		p.steps = append(p.steps, s)
	}
	return p
}

// without is the part without steps of these numbers.
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

func (p *part) any(f func(step) bool) bool {
	return slices.ContainsFunc(p.steps, func(s step) bool { return f(s) || s.inner != nil && s.inner.any(f) })
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
			vs = append(vs, operations[s.op].apply(m, t, s, a, b))
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

// operations are what a step does with two values of (rows, width). Those of once read a, and no other operation does on the way.
var operations = []struct {
	text  string
	once  bool
	apply func(m *model, t *autograd.Tape, s step, a, b *autograd.Variable) *autograd.Variable
}{
	{"$a + $b", true, func(_ *model, t *autograd.Tape, _ step, a, b *autograd.Variable) *autograd.Variable {
		return t.Add(a, b)
	}},
	{"tanh($a) * $b", true, func(_ *model, t *autograd.Tape, _ step, a, b *autograd.Variable) *autograd.Variable {
		return t.Mul(t.Tanh(a), b)
	}},
	{"softmax($b · $aᵀ) · $b", true, func(_ *model, t *autograd.Tape, _ step, a, b *autograd.Variable) *autograd.Variable {
		return t.MatMul(t.Softmax(t.MatMul(b, a, tensor.TransB)), b)
	}},
	{"linear$w($a)", true, func(m *model, t *autograd.Tape, s step, a, _ *autograd.Variable) *autograd.Variable {
		return m.Linears[s.w].Forward(t, a)
	}},
	{"relu($a · weight$wᵀ + sum($b))", true, func(m *model, t *autograd.Tape, s step, a, b *autograd.Variable) *autograd.Variable {
		return t.LinearReLU(a, t.Param(m.Linears[s.w].Weight), t.Sum(b, 0))
	}},
	{"dropout($a)", true, func(_ *model, t *autograd.Tape, _ step, a, _ *autograd.Variable) *autograd.Variable {
		return t.Dropout(a, 0.4)
	}},
	{"log_softmax($a)", true, func(_ *model, t *autograd.Tape, _ step, a, _ *autograd.Variable) *autograd.Variable {
		return t.LogSoftmax(a)
	}},
	{"detach($a) * $b", false, func(_ *model, t *autograd.Tape, _ step, a, b *autograd.Variable) *autograd.Variable {
		return t.Mul(t.Detach(a), b)
	}},
	{"layer_norm$w($a)", true, func(m *model, t *autograd.Tape, s step, a, _ *autograd.Variable) *autograd.Variable {
		return m.LayerNorms[s.w].Forward(t, a)
	}},
	{batchNorm, true, func(m *model, t *autograd.Tape, s step, a, _ *autograd.Variable) *autograd.Variable {
		return m.BatchNorms[s.w].Forward(t, a)
	}},
	{"$a + numbers", true, func(m *model, t *autograd.Tape, s step, a, _ *autograd.Variable) *autograd.Variable {
		return t.Add(a, t.Input(m.constant))
	}},
	{"attention($a, $b, $a)", false, func(_ *model, t *autograd.Tape, _ step, a, b *autograd.Variable) *autograd.Variable {
		return t.ScaledDotProductAttention(a, b, a, autograd.AttentionConfig{})
	}},
	{"$a * -0.5", true, func(_ *model, t *autograd.Tape, _ step, a, _ *autograd.Variable) *autograd.Variable {
		return t.MulScalar(a, -0.5)
	}},
	{"gelu($a)", true, func(_ *model, t *autograd.Tape, _ step, a, _ *autograd.Variable) *autograd.Variable { return t.GELU(a) }},
	{"relu($a)", true, func(_ *model, t *autograd.Tape, _ step, a, _ *autograd.Variable) *autograd.Variable { return t.ReLU(a) }},
	{"halves of $a swapped", false, func(m *model, t *autograd.Tape, _ step, a, _ *autograd.Variable) *autograd.Variable {
		parts := t.Split(a, 1, 1, m.width-1)
		return t.Cat(1, parts[1], parts[0])
	}},
	{"$aᵀᵀ", false, func(_ *model, t *autograd.Tape, _ step, a, _ *autograd.Variable) *autograd.Variable {
		return t.Transpose(t.Transpose(a))
	}},
	{"sum * layer_norm$w($a + $b)", false, func(m *model, t *autograd.Tape, s step, a, b *autograd.Variable) *autograd.Variable {
		sum, norm := m.LayerNorms[s.w].ForwardAdd(t, a, b)
		return t.Mul(sum, norm)
	}},
	{"$a + bias$w", true, func(m *model, t *autograd.Tape, s step, a, _ *autograd.Variable) *autograd.Variable {
		return t.AddBias(a, t.Param(m.Linears[s.w].Bias))
	}},
	{"$a + embedding", true, func(m *model, t *autograd.Tape, _ step, a, _ *autograd.Variable) *autograd.Variable {
		return t.Add(a, m.Embedding.Forward(t, t.Input(m.index)))
	}},
	{"conv$w($a)", false, func(m *model, t *autograd.Tape, s step, a, _ *autograd.Variable) *autograd.Variable {
		return t.Squeeze(m.Convs[s.w].Forward(t, t.Unsqueeze(a, 1)), 1)
	}},
	{"own_square($a)", true, func(m *model, t *autograd.Tape, _ step, a, _ *autograd.Variable) *autograd.Variable {
		return t.Func("OwnSquare", []*autograd.Variable{a}, func(c *autograd.Call) (*tensor.Tensor, error) {
			twice, err := c.Runtime().MulScalar(c.Context(), c.Input(0), 2)
			if err != nil {
				return nil, err
			}
			c.Save(twice)
			return c.Runtime().Square(c.Context(), c.Input(0))
		}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
			return c.Grads(c.Runtime().Mul(c.Context(), g, c.Saved()[0]))
		})
	}},
}

const batchNorm = "batch_norm$w($a)"
