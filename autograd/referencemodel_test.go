package autograd_test

import (
	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
)

// The models of the runs, as programs write them: structs in which parameters are found by their
// names. Sizes are those of the files, so that other files may have others.

func newRunCNN(in *nn.Initializer, shape func(string) []int) runModel {
	conv := func(name string) *nn.Convolution {
		s := shape(name + ".weight")
		return in.Conv2d(s[1], s[0], s[2])
	}
	linear := func(name string) *nn.Linear {
		s := shape(name + ".weight")
		return in.Linear(s[1], s[0])
	}
	return nn.Sequential{conv("0"), nn.ReLU{}, conv("2"), nn.ReLU{}, nn.MaxPool2d{Kernel: []int{2}}, nn.Flatten{}, linear("6"), nn.ReLU{}, linear("8")}
}

// runResNet has one residual block.
type runResNet struct {
	C0, C1, C2 *nn.Convolution
	B0, B1, B2 *nn.BatchNorm
	Fc         *nn.Linear
}

func newRunResNet(in *nn.Initializer, shape func(string) []int) runModel {
	conv := func(name string) *nn.Convolution {
		s := shape(name + ".weight")
		return in.Conv2d(s[1], s[0], s[2], nn.Padding(1), nn.NoBias())
	}
	norm := func(name string) *nn.BatchNorm { return in.BatchNorm(shape(name + ".weight")[0]) }
	fc := shape("fc.weight")
	return &runResNet{conv("c0"), conv("c1"), conv("c2"), norm("b0"), norm("b1"), norm("b2"), in.Linear(fc[1], fc[0])}
}

func (m *runResNet) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		h := nn.Sequential{m.C0, m.B0, nn.ReLU{}}.Forward(t, x)
		y := nn.Sequential{m.C1, m.B1, nn.ReLU{}}.Forward(t, h)
		y = t.ReLU(t.Add(h, m.B2.Forward(t, m.C2.Forward(t, y))))
		return m.Fc.Forward(t, nn.Flatten{}.Forward(t, t.AdaptiveAvgPool2d(y, 1)))
	})
}

// runLSTM reads sequences (steps, batch).
type runLSTM struct {
	Emb  *nn.Embedding
	Lstm *nn.LSTM
	Head *nn.Linear
}

func newRunLSTM(in *nn.Initializer, shape func(string) []int) runModel {
	emb, hidden, head := shape("emb.weight"), shape("lstm.weight_hh_l0")[1], shape("head.weight")
	return &runLSTM{in.Embedding(emb[0], emb[1]), in.LSTM(emb[1], hidden), in.Linear(head[1], head[0])}
}

func (m *runLSTM) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable { return m.Head.Forward(t, m.Lstm.Forward(t, m.Emb.Forward(t, x))) })
}

// runGPT is a transformer that reads from left to right, with the embedding's weights as its last
// layer.
type runGPT struct {
	Tok, Pos *nn.Embedding
	Blocks   []*runBlock
	Ln       *nn.LayerNorm
}

type runBlock struct {
	Ln1       *nn.LayerNorm
	Qkv, Proj *nn.Linear
	Ln2       *nn.LayerNorm
	Fc, Out   *nn.Linear
}

func newRunGPT(in *nn.Initializer, shape func(string) []int) runModel {
	tok, pos := shape("tok.weight"), shape("pos.weight")
	m := &runGPT{Tok: in.Embedding(tok[0], tok[1]), Pos: in.Embedding(pos[0], pos[1]), Ln: in.LayerNorm(tok[1])}
	for range 2 {
		m.Blocks = append(m.Blocks, newRunBlock(in, tok[1]))
	}
	return m
}

func newRunBlock(in *nn.Initializer, n int) *runBlock {
	return &runBlock{in.LayerNorm(n), in.Linear(n, 3*n), in.Linear(n, n), in.LayerNorm(n), in.Linear(n, 4*n), in.Linear(4*n, n)}
}

// forward computes a block. x is the residual input and n its first norm. It returns those of the
// next block, which has the first norm next.
func (m *runBlock) forward(t *autograd.Tape, x, n *autograd.Variable, next *nn.LayerNorm) (h, norm *autograd.Variable) {
	a := t.SelfAttention(m.Qkv.Forward(t, n), 4, true, autograd.AttentionConfig{Causal: true})
	h, n = m.Ln2.ForwardAdd(t, x.Once(), m.Proj.Forward(t, a).Once())
	return next.ForwardAdd(t, h.Once(), m.Out.Forward(t, t.GELUTanh(m.Fc.Forward(t, n))).Once())
}

func (m *runGPT) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		h := t.Add(m.Tok.Forward(t, x), t.Narrow(t.Param(m.Pos.Weight), 0, 0, x.Shape()[1]))
		n := m.Blocks[0].Ln1.Forward(t, h)
		for i, b := range m.Blocks {
			next := m.Ln
			if i+1 < len(m.Blocks) {
				next = m.Blocks[i+1].Ln1
			}
			h, n = b.forward(t, h, n, next)
		}
		return t.Linear(n, t.Param(m.Tok.Weight), nil)
	})
}
