package forecast_test

import (
	"math/rand/v2"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/forecasttest"
	"github.com/cistern-ml/cistern/tensor"
)

// random is a chain of random layers.
func random(r *rand.Rand) forecasttest.Task {
	seed := r.Uint64()
	inputs := 1 + r.IntN(300)
	return forecasttest.Task{
		Model: func(in *nn.Initializer, h forecasttest.How, off *tensor.Offloader) nn.Layer {
			r := rand.New(rand.NewPCG(seed, 1))
			var s nn.Sequential
			width := inputs
			for range 1 + r.IntN(6) {
				next := 1 + r.IntN(400)
				part := nn.Sequential{in.Linear(width, next)}
				switch r.IntN(5) {
				case 0:
					part = append(part, nn.ReLU{})
				case 1:
					part = append(part, nn.GELU{})
				case 2:
					part = append(part, in.LayerNorm(next), nn.ReLU{})
				case 3:
					part = append(part, nn.Dropout{P: 0.3})
				}
				width = next
				if r.IntN(2) == 0 {
					s = append(s, h.Wrapped(part, off))
				} else {
					s = append(s, part)
				}
			}
			return append(s, in.Linear(width, 10))
		},
		Data: func(in *nn.Initializer, batch int) (x, y *tensor.Tensor) {
			return in.Tensor(make([]float64, batch*inputs), batch, inputs), in.Labels(make([]int, batch), 10)
		},
	}
}

// gpt is a transformer.
type gpt struct {
	Tok, Pos *nn.Embedding
	Blocks   nn.Sequential
	Ln       *nn.LayerNorm
	tokens   int // of its vocabulary
}

type block struct {
	Ln1       *nn.LayerNorm
	Qkv, Proj *nn.Linear
	Ln2       *nn.LayerNorm
	Fc, Out   *nn.Linear
	heads     int
}

func (m *block) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		h := t.Add(x, m.Proj.Forward(t, t.SelfAttention(m.Qkv.Forward(t, m.Ln1.Forward(t, x)), m.heads, true, autograd.AttentionConfig{Causal: true})))
		return t.Add(h, m.Out.Forward(t, t.GELUTanh(m.Fc.Forward(t, m.Ln2.Forward(t, h)))))
	})
}

func (m *gpt) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		h := m.Blocks.Forward(t, t.Add(m.Tok.Forward(t, x), t.Param(m.Pos.Weight)))
		return t.Reshape(t.Linear(m.Ln.Forward(t, h), t.Param(m.Tok.Weight), nil), -1, m.tokens)
	})
}

// transformer returns a gpt of a size, for sequences of a number of tokens.
func transformer(layers, heads, width, tokens, vocabulary int) forecasttest.Task {
	return forecasttest.Task{
		Model: func(in *nn.Initializer, h forecasttest.How, off *tensor.Offloader) nn.Layer {
			m := &gpt{Tok: in.Embedding(vocabulary, width), Pos: in.Embedding(tokens, width), Ln: in.LayerNorm(width), tokens: vocabulary}
			for range layers {
				b := &block{Ln1: in.LayerNorm(width), Qkv: in.Linear(width, 3*width), Proj: in.Linear(width, width),
					Ln2: in.LayerNorm(width), Fc: in.Linear(width, 4*width), Out: in.Linear(4*width, width), heads: heads}
				m.Blocks = append(m.Blocks, h.Wrapped(nn.LayerOf(b), off))
			}
			return nn.LayerOf(m)
		},
		Data: func(in *nn.Initializer, batch int) (x, y *tensor.Tensor) {
			x, err := tensor.FromSlice(in.Context(), in.Runtime(), make([]int32, batch*tokens), batch, tokens)
			in.Fail(err)
			nn.Own(in, closer(x.Release))
			return x, in.Labels(make([]int, batch*tokens), vocabulary)
		},
	}
}

type closer func() error

func (c closer) Close() error { return c() }
