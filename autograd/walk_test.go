package autograd

import (
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
)

type walkBlock struct {
	Fc1     *Linear
	InProj  *Linear `param:"attn"`
	Gain    *Parameter
	Skipped *Parameter `param:"-"`
	None    *Linear
	Mean    *tensor.Tensor `buffer:"running_mean"`
	Data    *tensor.Tensor
	size    int
}

type walkCommon struct{ QKVProj *Parameter }

type walkModel struct {
	walkCommon
	Blocks  []*walkBlock
	Body    Sequential
	Act     Layer
	ByName  map[string]*Parameter
	ByNum   map[int]Linear
	Pair    [2]*Parameter
	Head    Linear
	Parent  *walkModel
	Numbers []float64
	Any     any
}

func (m *walkModel) Forward(t *Tape, x *Variable) *Variable { return t.MulScalar(x, 2) }

func namesOf(ps Parameters) (names []string) {
	for _, p := range ps {
		names = append(names, p.Name)
	}
	return names
}

// TestParametersOf: names and order of everything that is walked.
func TestParametersOf(t *testing.T) {
	b := open(t, 64<<20)
	n := func() *Parameter { return b.number(1) }
	linear := func() *Linear { return &Linear{Weight: n(), Bias: n()} }
	mean := upload(b, []float64{1})
	shared := linear()
	m := &walkModel{
		walkCommon: walkCommon{n()},
		Blocks:     []*walkBlock{{Fc1: linear(), InProj: linear(), Gain: n(), Skipped: n(), Mean: mean, Data: mean, size: 3}, nil, {Fc1: shared, InProj: shared}},
		Body:       Sequential{linear(), ReLU{}, shared},
		Act:        ReLU{},
		ByName:     map[string]*Parameter{"b": n(), "a": n()},
		ByNum:      map[int]Linear{10: *linear(), 9: {Weight: n()}},
		Pair:       [2]*Parameter{nil, n()},
		Numbers:    make([]float64, 3),
	}
	m.Head.Weight = m.Body[0].(*Linear).Weight // tied
	m.Parent, m.Any = m, n()
	want := []string{
		"qkv_proj", "blocks.0.fc1.weight", "blocks.0.fc1.bias", "blocks.0.attn.weight", "blocks.0.attn.bias", "blocks.0.gain",
		"blocks.2.fc1.weight", "blocks.2.fc1.bias", "body.0.weight", "body.0.bias", "by_name.a", "by_name.b",
		"by_num.9.weight", "by_num.10.weight", "by_num.10.bias", "pair.1", "any",
	}
	require.Equal(t, want, namesOf(ParametersOf(m)))
	assert.Equal(t, []NamedTensor{{"blocks.0.running_mean", mean}}, BuffersOf(m))
	layer := LayerOf(m)
	require.Equal(t, want, namesOf(layer.Parameters()))
	assert.Equal(t, []NamedTensor{{"0.blocks.0.running_mean", mean}}, Sequential{layer}.Buffers())
	opt, err := withErr(NewSGD(layer.Parameters(), SGDConfig{}))
	require.NoError(t, err)
	require.NoError(t, opt.Close())
	tape := NoGrad(b.ctx, b.rt)
	assert.Equal(t, 6.0, layer.Forward(tape, Upload(tape, []float64{3})).Item())
	require.NoError(t, tape.Close())

	state, err := StateDict(m)
	require.NoError(t, err)
	names := map[string]*tensor.Tensor{}
	for _, s := range state {
		names[s.Name] = s.Tensor
	}
	assert.Len(t, names, len(want)+1+4+1, "a shared parameter has all of its names, as in PyTorch")
	assert.Same(t, m.Head.Weight.value, names["head.weight"])
	assert.Same(t, names["body.0.weight"], names["head.weight"])
	assert.Same(t, names["blocks.2.attn.bias"], names["body.2.bias"])

	assert.Equal(t, []string{"0.weight", "0.bias", "2.weight", "2.bias"}, namesOf(ParametersOf(m.Body)))
	assert.Equal(t, []string{"weight", "bias"}, namesOf(ParametersOf(shared)))
	assert.Equal(t, []string{strconv.Itoa(math.MinInt), "1"}, namesOf(ParametersOf(map[int]*Parameter{1: n(), math.MinInt: n()})))
	for _, none := range []any{nil, 1, "x", (*walkModel)(nil), ReLU{}, struct{}{}, []int{1}, Sequential(nil), func() {}} {
		assert.Empty(t, ParametersOf(none), "%T", none)
	}
}

// TestParametersOfTells of what would be forgotten.
func TestParametersOfTells(t *testing.T) {
	b := open(t, 64<<20)
	p := b.number(1)
	for why, model := range map[string]any{
		"the field fc1 is not exported": struct{ fc1 *Linear }{&Linear{Weight: p}},
		"the field ps is not exported":  struct{ ps []*Parameter }{},
		"the keys of a map are float64": struct{ M map[float64]*Parameter }{map[float64]*Parameter{1: p}},
		"two parameters have that name": struct {
			A *Parameter `param:"a"`
			B *Parameter `param:"a"`
		}{p, b.number(2)},
	} {
		ps := ParametersOf(model)
		require.NotEmpty(t, ps, why)
		_, err := withErr(NewSGD(ps, SGDConfig{}))
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, why)
		_, err = StateDict(model)
		require.ErrorContains(t, err, why)
	}
}

// TestSnake: Go's names as Python writes them.
func TestSnake(t *testing.T) {
	for name, want := range map[string]string{
		"Fc1": "fc1", "InProj": "in_proj", "QKV": "qkv", "QKVProj": "qkv_proj", "LN1": "ln1", "WeightIH": "weight_ih", "A": "a", "Conv2dT": "conv2d_t", "In_Proj": "in_proj",
	} {
		assert.Equal(t, want, snake(name))
	}
}
