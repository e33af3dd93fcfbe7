package nn_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// recurrentCase is a recurrent layer of random size, with its weights and optional initial states.
type recurrentCase struct {
	b                          *tapetest.Bench
	layer                      nn.Recurrent
	steps, batch, inputs, size int
	flat, states               bool
	x, h0, c0                  []float64
	useY, useH, useC           bool // the results that the loss reads
}

func newRecurrentCase(b *tapetest.Bench, random *rand.Rand) *recurrentCase {
	c := &recurrentCase{b: b, steps: 1 + random.IntN(4), batch: 1 + random.IntN(3), inputs: 1 + random.IntN(4), size: 1 + random.IntN(4)}
	in := nn.Init(b.Ctx, b.RT, nn.Seed(random.Uint64()), nn.Dtype(tensor.Float64))
	var options []nn.LayerOption
	for _, o := range []nn.LayerOption{nn.Layers(2), nn.Bidirectional(), nn.BatchFirst(), nn.NoBias()} {
		if random.IntN(3) == 0 {
			options = append(options, o)
		}
	}
	switch random.IntN(4) {
	case 0:
		c.layer = nn.Recurrent(*in.LSTM(c.inputs, c.size, options...))
	case 1:
		c.layer = nn.Recurrent(*in.GRU(c.inputs, c.size, options...))
	case 2:
		c.layer = nn.Recurrent(*in.RNN(c.inputs, c.size, options...))
	default:
		c.layer = nn.Recurrent(*in.RNN(c.inputs, c.size, append(options, nn.ReLUCell())...))
	}
	require.NoError(b.T, in.Err())
	if c.flat = random.IntN(4) == 0; c.flat {
		c.batch = 1
	}
	c.states = random.IntN(2) == 0
	numbers := func(n int) []float64 {
		data := make([]float64, n)
		for i := range data {
			data[i] = random.NormFloat64()
		}
		return data
	}
	c.x = numbers(c.steps * c.batch * c.inputs)
	c.h0, c.c0 = numbers(len(c.layer.Cells)*c.batch*c.size), numbers(len(c.layer.Cells)*c.batch*c.size)
	c.useH, c.useC = random.IntN(2) == 0, random.IntN(2) == 0
	c.useY = !c.useH || random.IntN(2) == 0
	return c
}

// shape is that of numbers of each step.
func (c *recurrentCase) shape(n int) []int {
	switch {
	case c.flat:
		return []int{c.steps, n}
	case c.layer.BatchFirst:
		return []int{c.batch, c.steps, n}
	}
	return []int{c.steps, c.batch, n}
}

// run returns results and gradients of f.
func (c *recurrentCase) run(f func(t *autograd.Tape, x, h0, c0 *autograd.Variable) (y, hn, cn *autograd.Variable)) (all [][]float64) {
	t := c.b.T
	tape := autograd.NewTape(c.b.Ctx, c.b.RT)
	defer func() { require.NoError(t, tape.Close()) }()
	leaf := func(data []float64, shape ...int) *autograd.Variable {
		x, err := tensor.FromSlice(c.b.Ctx, c.b.RT, data, shape...)
		require.NoError(t, err)
		defer x.Release()
		return tape.Leaf(x)
	}
	x := leaf(c.x, c.shape(c.inputs)...)
	var h0, c0 *autograd.Variable
	if c.states {
		shape := []int{len(c.layer.Cells), c.batch, c.size}
		if c.flat {
			shape = []int{len(c.layer.Cells), c.size}
		}
		h0 = leaf(c.h0, shape...)
		if c.layer.Kind == tensor.LSTM {
			c0 = leaf(c.c0, shape...)
		}
	}
	y, hn, cn := f(tape, x, h0, c0)
	require.NoError(t, tape.Err())
	loss := tape.MulScalar(tape.Sum(x), 0.125)
	for i, v := range []*autograd.Variable{y, hn, cn} {
		if v == nil {
			continue
		}
		v.Keep()
		all = append(all, tapetest.Read[float64](c.b, v.Value()))
		if []bool{c.useY, c.useH, c.useC}[i] {
			weights := make([]float64, v.Value().Elements())
			for j := range weights {
				weights[j] = math.Sin(float64(i + 3*j))
			}
			loss = tape.Add(loss, tape.Sum(tape.Mul(v, autograd.Upload(tape, weights, v.Shape()...))))
		}
	}
	_, err := tape.Backward(loss)
	require.NoError(t, err)
	for _, v := range []*autograd.Variable{x, h0, c0} {
		if v != nil && v.Grad() != nil {
			all = append(all, tapetest.Read[float64](c.b, v.Grad()))
		}
	}
	ps := c.layer.Parameters()
	for _, p := range ps {
		require.NotNil(t, p.Grad(), p.Name)
		all = append(all, tapetest.Read[float64](c.b, p.Grad()))
	}
	require.NoError(t, ps.ZeroGrad(c.b.Ctx))
	return all
}

// parts is the layer as products and functions of each number, one step after the other.
func (c *recurrentCase) parts(t *autograd.Tape, x, h0, c0 *autograd.Variable) (y, hn, cn *autograd.Variable) {
	r := &c.layer
	switch {
	case c.flat:
		x = t.Reshape(x, c.steps, 1, c.inputs)
	case r.BatchFirst:
		x = t.Transpose(x, 0, 1)
	}
	var hs, cs []*autograd.Variable
	for i := range r.Cells {
		if i%tapetest.DirectionsOf(r) == 0 && i > 0 {
			x = y
		}
		h := autograd.Upload(t, make([]float64, c.batch*c.size), c.batch, c.size)
		cell := autograd.Upload(t, make([]float64, c.batch*c.size), c.batch, c.size)
		if h0 != nil {
			h = t.Reshape(t.Narrow(h0, 0, i, 1), c.batch, c.size)
		}
		if c0 != nil {
			cell = t.Reshape(t.Narrow(c0, 0, i, 1), c.batch, c.size)
		}
		steps := make([]*autograd.Variable, c.steps)
		for s := range c.steps {
			at := s
			if i%tapetest.DirectionsOf(r) == 1 {
				at = c.steps - 1 - s
			}
			h, cell = c.step(t, r.Cells[i], t.Reshape(t.Narrow(x, 0, at, 1), c.batch, -1), h, cell)
			steps[at] = h
		}
		all := t.Stack(0, steps...)
		if i%tapetest.DirectionsOf(r) == 1 {
			all = t.Cat(2, y, all)
		}
		y, hs, cs = all, append(hs, h), append(cs, cell)
	}
	hn, cn = t.Stack(0, hs...), t.Stack(0, cs...)
	if r.Kind != tensor.LSTM {
		cn = nil
	}
	switch {
	case c.flat:
		y, hn = t.Reshape(y, c.steps, -1), t.Reshape(hn, len(hs), c.size)
		if cn != nil {
			cn = t.Reshape(cn, len(hs), c.size)
		}
	case r.BatchFirst:
		y = t.Transpose(y, 0, 1)
	}
	return y, hn, cn
}

func (c *recurrentCase) step(t *autograd.Tape, w nn.RecurrentCell, x, h, cell *autograd.Variable) (*autograd.Variable, *autograd.Variable) {
	param := func(p *autograd.Parameter) *autograd.Variable {
		if p == nil {
			return nil
		}
		return t.Param(p)
	}
	a, b := t.Linear(x, t.Param(w.WeightIH), param(w.BiasIH)), t.Linear(h, t.Param(w.WeightHH), param(w.BiasHH))
	gate := func(v *autograd.Variable, i int) *autograd.Variable { return t.Narrow(v, 1, i*c.size, c.size) }
	both := func(i int) *autograd.Variable { return t.Add(gate(a, i), gate(b, i)) }
	switch c.layer.Kind {
	case tensor.RNNTanh:
		return t.Tanh(both(0)), cell
	case tensor.RNNReLU:
		return t.ReLU(both(0)), cell
	case tensor.LSTM:
		cell = t.Add(t.Mul(t.Sigmoid(both(1)), cell), t.Mul(t.Sigmoid(both(0)), t.Tanh(both(2))))
		return t.Mul(t.Sigmoid(both(3)), t.Tanh(cell)), cell
	}
	reset, update := t.Sigmoid(both(0)), t.Sigmoid(both(1))
	fresh := t.Tanh(t.Add(gate(a, 2), t.Mul(reset, gate(b, 2))))
	return t.Add(t.Mul(t.AddScalar(t.Neg(update), 1), fresh), t.Mul(update, h)), cell
}

// TestRecurrentLayersAgainstTheirParts compares results, last states and gradients of random
// layers. Kinds, directions, layers, biases, initial states, and the results that the loss reads
// are random.
func TestRecurrentLayersAgainstTheirParts(t *testing.T) {
	b := tapetest.Open(t, 256<<20)
	cases := 100
	if testing.Short() {
		cases = 30
	}
	for i := range cases {
		c := newRecurrentCase(b, rand.New(rand.NewPCG(uint64(i), 4)))
		before := b.Bytes()
		want := c.run(c.parts)
		got := c.run(func(t *autograd.Tape, x, h0, c0 *autograd.Variable) (y, hn, cn *autograd.Variable) {
			return (*nn.LSTM)(&c.layer).Run(t, x, h0, c0)
		})
		require.Len(t, got, len(want), "case %d", i)
		for j := range want {
			tapetest.RequireNear(t, want[j], got[j], "case %d, array %d: kind %d, %d steps, batch %d, states %v, reverse %v, flat %v, loss of %v %v %v", i, j,
				c.layer.Kind, c.steps, c.batch, c.states, c.layer.Bidirectional, c.flat, c.useY, c.useH, c.useC)
		}
		require.Equal(t, before, b.Bytes(), "case %d left memory behind", i)
		tape := autograd.NoGrad(b.Ctx, b.RT)
		y := c.layer.Forward(tape, autograd.Upload(tape, c.x, c.shape(c.inputs)...))
		if !c.states {
			tapetest.RequireNear(t, want[0], tapetest.Read[float64](b, y.Value()), "case %d without gradients", i)
		}
		require.NoError(t, tape.Err())
		live, _ := b.RT.Live()
		require.Equal(t, len(c.layer.Parameters())+2, live, "case %d: parameters, the argument and the result", i)
		require.NoError(t, tape.Close())
		require.NoError(t, c.layer.Parameters().Release())
	}
}

func TestRecurrentLayersRefuse(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT)
	defer in.Close()
	lstm := in.LSTM(3, 2, nn.Layers(2))
	require.NoError(t, in.Err())
	zeros := func(t *autograd.Tape, shape ...int) *autograd.Variable {
		return autograd.Upload(t, make([]float32, tapetest.Elements(shape)), shape...)
	}
	for name, f := range map[string]func(t *autograd.Tape){
		"a vector":             func(t *autograd.Tape) { lstm.Forward(t, zeros(t, 3)) },
		"no steps":             func(t *autograd.Tape) { lstm.Forward(t, zeros(t, 0, 4, 3)) },
		"other inputs":         func(t *autograd.Tape) { lstm.Forward(t, zeros(t, 5, 4, 2)) },
		"one state for two":    func(t *autograd.Tape) { lstm.Run(t, zeros(t, 5, 4, 3), zeros(t, 1, 4, 2), nil) },
		"states without batch": func(t *autograd.Tape) { lstm.Run(t, zeros(t, 5, 4, 3), zeros(t, 2, 2), nil) },
		"states of another batch": func(t *autograd.Tape) {
			lstm.Run(t, zeros(t, 5, 4, 3), zeros(t, 2, 3, 2), zeros(t, 2, 4, 2))
		},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		f(tape)
		assert.ErrorIs(t, tape.Close(), tensor.ErrShape, name)
	}
	tape := autograd.NewTape(b.Ctx, b.RT)
	var none *nn.LSTM
	assert.Nil(t, none.Parameters())
	none.Forward(tape, zeros(tape, 1, 1, 1))
	require.ErrorIs(t, tape.Close(), autograd.ErrInvalid)
	tape = autograd.NewTape(b.Ctx, b.RT)
	(&nn.LSTM{}).Forward(tape, zeros(tape, 1, 1, 1))
	require.ErrorIs(t, tape.Close(), autograd.ErrInvalid)
	for _, f := range []func(in *nn.Initializer){
		func(in *nn.Initializer) { in.LSTM(0, 2) }, func(in *nn.Initializer) { in.GRU(2, 2, nn.Layers(-1)) },
		func(in *nn.Initializer) { in.LSTM(2, 2, nn.ReLUCell()) }, func(in *nn.Initializer) { in.RNN(2, 2, nn.Stride(2)) },
		func(in *nn.Initializer) { in.Embedding(0, 2) }, func(in *nn.Initializer) { in.Embedding(3, 2, nn.PaddingIndex(3)) },
		func(in *nn.Initializer) { in.MultiHeadAttention(6, 4) }, func(in *nn.Initializer) { in.MultiHeadAttention(6, 3, nn.Layers(2)) },
	} {
		in := nn.Init(b.Ctx, b.RT)
		f(in)
		assert.ErrorIs(t, in.Err(), autograd.ErrInvalid)
		_ = in.Close()
	}
}

// TestNamesOfSequenceLayers and shapes are PyTorch's.
func TestNamesOfSequenceLayers(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
	defer in.Close()
	list := func(ps autograd.Parameters) (all []string) {
		for _, p := range ps {
			all = append(all, fmt.Sprint(p.Name, []int(p.Value().Shape())))
		}
		return all
	}
	assert.Equal(t, []string{"weight_ih_l0[8 3]", "weight_hh_l0[8 2]", "bias_ih_l0[8]", "bias_hh_l0[8]",
		"weight_ih_l0_reverse[8 3]", "weight_hh_l0_reverse[8 2]", "bias_ih_l0_reverse[8]", "bias_hh_l0_reverse[8]",
		"weight_ih_l1[8 4]", "weight_hh_l1[8 2]", "bias_ih_l1[8]", "bias_hh_l1[8]",
		"weight_ih_l1_reverse[8 4]", "weight_hh_l1_reverse[8 2]", "bias_ih_l1_reverse[8]", "bias_hh_l1_reverse[8]"},
		list(in.LSTM(3, 2, nn.Layers(2), nn.Bidirectional()).Parameters()))
	assert.Equal(t, []string{"weight_ih_l0[6 3]", "weight_hh_l0[6 2]"}, list(in.GRU(3, 2, nn.NoBias()).Parameters()))
	assert.Equal(t, []string{"weight_ih_l0[2 3]", "weight_hh_l0[2 2]", "bias_ih_l0[2]", "bias_hh_l0[2]"}, list(in.RNN(3, 2).Parameters()))
	assert.Equal(t, []string{"in_proj_weight[12 4]", "in_proj_bias[12]", "out_proj.weight[4 4]", "out_proj.bias[4]"},
		list(in.MultiHeadAttention(4, 2).Parameters()))
	assert.Equal(t, []string{"q_proj_weight[4 4]", "k_proj_weight[4 3]", "v_proj_weight[4 4]", "out_proj.weight[4 4]"},
		list(in.MultiHeadAttention(4, 2, nn.KeyDim(3), nn.NoBias()).Parameters()))
	e := in.Embedding(500, 4, nn.PaddingIndex(-499))
	assert.Equal(t, []string{"weight[500 4]"}, list(e.Parameters()))
	require.NoError(t, in.Err())
	table := tapetest.Read[float32](b, e.Weight.Value())
	assert.Equal(t, []float32{0, 0, 0, 0}, table[4:8], "the padding's row")
	sum, squares := 0.0, 0.0
	for _, v := range table {
		sum, squares = sum+float64(v), squares+float64(v)*float64(v)
	}
	assert.InDelta(t, 0, sum/2000, 0.1)
	assert.InDelta(t, 1, squares/2000, 0.15)
	for _, v := range tapetest.Read[float32](b, in.LSTM(3, 16).Cells[0].WeightHH.Value()) {
		require.LessOrEqual(t, math.Abs(float64(v)), 0.25)
	}
}

// TestDropoutBetweenLayers drops only on tapes that train, and only between layers.
func TestDropoutBetweenLayers(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1), nn.Dtype(tensor.Float64))
	defer in.Close()
	one, two := in.GRU(3, 16, nn.DropoutBetween(0.5)), in.GRU(3, 16, nn.Layers(2), nn.DropoutBetween(0.5))
	require.NoError(t, in.Err())
	run := func(l nn.Layer, training bool, seed uint64) []float64 {
		tape := autograd.NewTape(b.Ctx, b.RT)
		defer tape.Close()
		tape.SetSeed(seed)
		tape.SetTraining(training)
		y := l.Forward(tape, autograd.Upload(tape, []float64{1, 2, 3}, 1, 1, 3))
		require.NoError(t, tape.Err())
		return tapetest.Read[float64](b, y.Value())
	}
	assert.Equal(t, run(one, true, 1), run(one, true, 2))
	assert.Equal(t, run(two, false, 1), run(two, false, 2))
	assert.Equal(t, run(two, true, 1), run(two, true, 1))
	assert.NotEqual(t, run(two, true, 1), run(two, true, 2))
}

// Tensors that a pass made for its gradients are freed when Backward returns.
func TestRecurrentLayersLeaveNothing(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT)
	x := in.Tensor(make([]float64, 4*2*3), 4, 2, 3)
	for name, layer := range map[string]nn.Layer{"RNN": in.RNN(3, 5), "LSTM": in.LSTM(3, 5, nn.Bidirectional()), "GRU": in.GRU(3, 5, nn.Layers(2))} {
		require.NoError(t, in.Err())
		before, _ := b.RT.Live()
		tape := autograd.NewTape(b.Ctx, b.RT)
		_, err := tape.Backward(tape.Sum(layer.Forward(tape, tape.Leaf(x))))
		require.NoError(t, err)
		live, _ := b.RT.Live()
		require.Equal(t, before+2+len(layer.Parameters()), live, "%s: the loss and the gradients", name)
		require.NoError(t, errors.Join(tape.Close(), layer.Parameters().ZeroGrad(b.Ctx)))
	}
	require.NoError(t, in.Close())
}
