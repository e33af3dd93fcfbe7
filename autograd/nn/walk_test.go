package nn_test

import (
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

type walkBlock struct {
	Fc1     *nn.Linear
	InProj  *nn.Linear `param:"attn"`
	Gain    *autograd.Parameter
	Skipped *autograd.Parameter `param:"-"`
	None    *nn.Linear
	Mean    *tensor.Tensor `buffer:"running_mean"`
	Data    *tensor.Tensor
	size    int
}

type walkCommon struct{ QKVProj *autograd.Parameter }

type walkModel struct {
	walkCommon
	Blocks  []*walkBlock
	Body    nn.Sequential
	Act     nn.Layer
	ByName  map[string]*autograd.Parameter
	ByNum   map[int]nn.Linear
	Pair    [2]*autograd.Parameter
	Head    nn.Linear
	Parent  *walkModel
	Numbers []float64
	Any     any
}

func (m *walkModel) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.MulScalar(x, 2)
}

func namesOf(ps autograd.Parameters) (names []string) {
	for _, p := range ps {
		names = append(names, p.Name)
	}
	return names
}

// TestParametersOf tests names and order of all kinds of fields.
func TestParametersOf(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	n := func() *autograd.Parameter { return b.Number(1) }
	linear := func() *nn.Linear { return &nn.Linear{Weight: n(), Bias: n()} }
	mean := tapetest.Upload(b, []float64{1})
	shared := linear()
	m := &walkModel{
		walkCommon: walkCommon{n()},
		Blocks:     []*walkBlock{{Fc1: linear(), InProj: linear(), Gain: n(), Skipped: n(), Mean: mean, Data: mean, size: 3}, nil, {Fc1: shared, InProj: shared}},
		Body:       nn.Sequential{linear(), nn.ReLU{}, shared},
		Act:        nn.ReLU{},
		ByName:     map[string]*autograd.Parameter{"b": n(), "a": n()},
		ByNum:      map[int]nn.Linear{10: *linear(), 9: {Weight: n()}},
		Pair:       [2]*autograd.Parameter{nil, n()},
		Numbers:    make([]float64, 3),
	}
	m.Head.Weight = m.Body[0].(*nn.Linear).Weight // tied
	m.Parent, m.Any = m, n()
	want := []string{
		"qkv_proj", "blocks.0.fc1.weight", "blocks.0.fc1.bias", "blocks.0.attn.weight", "blocks.0.attn.bias", "blocks.0.gain",
		"blocks.2.fc1.weight", "blocks.2.fc1.bias", "body.0.weight", "body.0.bias", "by_name.a", "by_name.b",
		"by_num.9.weight", "by_num.10.weight", "by_num.10.bias", "pair.1", "any",
	}
	require.Equal(t, want, namesOf(nn.ParametersOf(m)))
	assert.Equal(t, []nn.NamedTensor{{"blocks.0.running_mean", mean}}, nn.BuffersOf(m))
	layer := nn.LayerOf(m)
	require.Equal(t, want, namesOf(layer.Parameters()))
	assert.Equal(t, []nn.NamedTensor{{"0.blocks.0.running_mean", mean}}, nn.Sequential{layer}.Buffers())
	opt, err := tapetest.WithErr(optim.NewSGD(layer.Parameters(), optim.SGDConfig{}))
	require.NoError(t, err)
	require.NoError(t, opt.Close())
	tape := autograd.NoGrad(b.Ctx, b.RT)
	assert.Equal(t, 6.0, layer.Forward(tape, autograd.Upload(tape, []float64{3})).Item())
	require.NoError(t, tape.Close())

	state, err := nn.StateDict(m)
	require.NoError(t, err)
	names := map[string]*tensor.Tensor{}
	for _, s := range state {
		names[s.Name] = s.Tensor
	}
	assert.Len(t, names, len(want)+1+4+1, "a shared parameter has all of its names, as in PyTorch")
	assert.Same(t, m.Head.Weight.Value(), names["head.weight"])
	assert.Same(t, names["body.0.weight"], names["head.weight"])
	assert.Same(t, names["blocks.2.attn.bias"], names["body.2.bias"])

	assert.Equal(t, []string{"0.weight", "0.bias", "2.weight", "2.bias"}, namesOf(nn.ParametersOf(m.Body)))
	assert.Equal(t, []string{"weight", "bias"}, namesOf(nn.ParametersOf(shared)))
	assert.Equal(t, []string{strconv.Itoa(math.MinInt), "1"}, namesOf(nn.ParametersOf(map[int]*autograd.Parameter{1: n(), math.MinInt: n()})))
	for _, none := range []any{nil, 1, "x", (*walkModel)(nil), nn.ReLU{}, struct{}{}, []int{1}, nn.Sequential(nil), func() {}} {
		assert.Empty(t, nn.ParametersOf(none), "%T", none)
	}
}

// TestParametersOfRefuses parameters that would be lost.
func TestParametersOfRefuses(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := b.Number(1)
	for why, model := range map[string]any{
		"the field fc1 is not exported": struct{ fc1 *nn.Linear }{&nn.Linear{Weight: p}},
		"the field ps is not exported":  struct{ ps []*autograd.Parameter }{},
		"the keys of a map are float64": struct {
			M map[float64]*autograd.Parameter
		}{map[float64]*autograd.Parameter{1: p}},
		"two parameters have that name": struct {
			A *autograd.Parameter `param:"a"`
			B *autograd.Parameter `param:"a"`
		}{p, b.Number(2)},
	} {
		ps := nn.ParametersOf(model)
		require.NotEmpty(t, ps, why)
		_, err := tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{}))
		require.ErrorIs(t, err, autograd.ErrInvalid)
		require.ErrorContains(t, err, why)
		_, err = nn.StateDict(model)
		require.ErrorContains(t, err, why)
	}
}

// TestSnake: Go's names as Python writes them.
func TestSnake(t *testing.T) {
	for name, want := range map[string]string{
		"Fc1": "fc1", "InProj": "in_proj", "QKV": "qkv", "QKVProj": "qkv_proj", "LN1": "ln1", "WeightIH": "weight_ih", "A": "a", "Conv2dT": "conv2d_t", "In_Proj": "in_proj",
	} {
		assert.Equal(t, want, nn.Snake(name))
	}
}
