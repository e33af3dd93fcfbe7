package models

import (
	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
)

// A picture is 4 by 4 patches of 7 by 7 pixels.
const (
	patches = 4
	patch   = digits.Side / patches
	width   = 64
	heads   = 4
)

// vit is a transformer over patches.
type vit struct {
	P   *nn.Linear
	Pos *autograd.Parameter
	B   nn.Sequential
	N   *nn.LayerNorm
	O   *nn.Linear
}

func newViT(in *nn.Initializer) nn.Layer {
	v := &vit{P: in.Linear(patch*patch, width), Pos: in.Normal(0, 0.02, patches*patches, width)}
	for range 4 {
		v.B = append(v.B, newEncoder(in))
	}
	v.N, v.O = in.LayerNorm(width), in.Linear(width, digits.Classes)
	return nn.LayerOf(v)
}

// Forward returns the logits for the mean over the patches.
func (v *vit) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		words := t.Permute(t.Reshape(x, -1, patches, patch, patches, patch), 0, 1, 3, 2, 4)
		words = t.Reshape(words, -1, patches*patches, patch*patch)
		h := t.Add(v.P.Forward(t, words), t.Param(v.Pos))
		return v.O.Forward(t, t.Mean(v.N.Forward(t, v.B.Forward(t, h)), 1))
	})
}

// encoder is attention and a dense part, each after a norm.
type encoder struct {
	N1     *nn.LayerNorm
	Qkv, O *nn.Linear
	N2     *nn.LayerNorm
	F, G   *nn.Linear
}

func newEncoder(in *nn.Initializer) nn.Layer {
	return nn.LayerOf(&encoder{
		N1: in.LayerNorm(width), Qkv: in.Linear(width, 3*width), O: in.Linear(width, width),
		N2: in.LayerNorm(width), F: in.Linear(width, 256), G: in.Linear(256, width),
	})
}

// Forward maps patches (n, 16, 64) to patches.
func (e *encoder) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		h := t.Add(x, e.O.Forward(t, t.SelfAttention(e.Qkv.Forward(t, e.N1.Forward(t, x)), heads, true, autograd.AttentionConfig{})))
		return t.Add(h, e.G.Forward(t, t.GELU(e.F.Forward(t, e.N2.Forward(t, h)))))
	})
}
