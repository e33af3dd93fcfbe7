package nn

import (
	"fmt"
	"strconv"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// Recurrent is the common part of recurrent layers: cells on top of each other, run over sequences
// (steps, batch, n), or (batch, steps, n) with BatchFirst, or (steps, n) without a batch.
type Recurrent struct {
	Kind tensor.RecurrentKind
	// Cells are those of layer 0, of its reverse direction if Bidirectional, of layer 1, …
	Cells                     []RecurrentCell
	Bidirectional, BatchFirst bool
	// Dropout is the share of the numbers between two layers that is dropped in training.
	Dropout float64
}

// RecurrentCell has the weights of one direction of one layer; biases may be nil.
type RecurrentCell struct {
	WeightIH, WeightHH, BiasIH, BiasHH *autograd.Parameter
}

// RNN is a recurrent layer of tanh or ReLU (torch.nn.RNN).
type RNN Recurrent

// LSTM is a layer of long short-term memory (torch.nn.LSTM, without projections).
type LSTM Recurrent

// GRU is a layer of gated recurrent units (torch.nn.GRU).
type GRU Recurrent

// Forward returns the last layer's states of every step, (steps, batch, hidden), both directions
// beside each other. The initial states are zeros.
func (r *Recurrent) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	y, _, _ := r.run(t, x, nil, nil, nil, false)
	return y
}

// Forward is [Recurrent.Forward].
func (r *RNN) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return (*Recurrent)(r).Forward(t, x)
}

// Forward is [Recurrent.Forward].
func (r *LSTM) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return (*Recurrent)(r).Forward(t, x)
}

// Forward is [Recurrent.Forward].
func (r *GRU) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return (*Recurrent)(r).Forward(t, x)
}

// Parameters are [Recurrent.Parameters].
func (r *RNN) Parameters() autograd.Parameters { return (*Recurrent)(r).Parameters() }

// Parameters are [Recurrent.Parameters].
func (r *LSTM) Parameters() autograd.Parameters { return (*Recurrent)(r).Parameters() }

// Parameters are [Recurrent.Parameters].
func (r *GRU) Parameters() autograd.Parameters { return (*Recurrent)(r).Parameters() }

// Run is Forward from the initial states h0, (layers, batch, hidden), or (layers, hidden) without a
// batch. Each direction counts as a layer, and nil means zeros. hn is the state after the last
// step, of h0's shape.
func (r *RNN) Run(t *autograd.Tape, x, h0 *autograd.Variable) (y, hn *autograd.Variable) {
	y, hn, _ = (*Recurrent)(r).run(t, x, nil, h0, nil, true)
	return y, hn
}

// Run is like [RNN.Run].
func (r *GRU) Run(t *autograd.Tape, x, h0 *autograd.Variable) (y, hn *autograd.Variable) {
	y, hn, _ = (*Recurrent)(r).run(t, x, nil, h0, nil, true)
	return y, hn
}

// Run is like [RNN.Run]; c0 and cn are the cell states.
func (r *LSTM) Run(t *autograd.Tape, x, h0, c0 *autograd.Variable) (y, hn, cn *autograd.Variable) {
	return (*Recurrent)(r).run(t, x, nil, h0, c0, true)
}

// RunPadded is Run of rows of different lengths (torch.nn.utils.rnn.pack_padded_sequence, in any
// order). At a row's end the states stop, hn is the state there, and the reverse direction begins
// there. After the end y is 0, and x does not count and has no gradient.
func (r *RNN) RunPadded(t *autograd.Tape, x *autograd.Variable, lengths *Lengths, h0 *autograd.Variable) (y, hn *autograd.Variable) {
	y, hn, _ = (*Recurrent)(r).runPadded(t, x, lengths, h0, nil)
	return y, hn
}

// RunPadded is like [RNN.RunPadded].
func (r *GRU) RunPadded(t *autograd.Tape, x *autograd.Variable, lengths *Lengths, h0 *autograd.Variable) (y, hn *autograd.Variable) {
	y, hn, _ = (*Recurrent)(r).runPadded(t, x, lengths, h0, nil)
	return y, hn
}

// RunPadded is like [RNN.RunPadded]; c0 and cn are the cell states.
func (r *LSTM) RunPadded(t *autograd.Tape, x *autograd.Variable, lengths *Lengths, h0, c0 *autograd.Variable) (y, hn, cn *autograd.Variable) {
	return (*Recurrent)(r).runPadded(t, x, lengths, h0, c0)
}

func (r *Recurrent) runPadded(t *autograd.Tape, x *autograd.Variable, lengths *Lengths, h0, c0 *autograd.Variable) (y, hn, cn *autograd.Variable) {
	if lengths == nil {
		lengths = new(Lengths) // which is refused
	}
	return r.run(t, x, lengths, h0, c0, true)
}

func (r *Recurrent) name() string {
	return [...]string{"RNN", "RNN", "LSTM", "GRU"}[min(r.Kind, tensor.GRU)]
}

// Parameters have PyTorch's names: weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0,
// weight_ih_l0_reverse, …
func (r *Recurrent) Parameters() autograd.Parameters {
	if r == nil {
		return nil
	}
	var ps autograd.Parameters
	for i, c := range r.Cells {
		suffix := "_l" + strconv.Itoa(i/r.directions())
		if i%r.directions() == 1 {
			suffix += "_reverse"
		}
		for _, p := range []autograd.Named{{Name: "weight_ih", Parameter: c.WeightIH}, {Name: "weight_hh", Parameter: c.WeightHH}, {Name: "bias_ih", Parameter: c.BiasIH}, {Name: "bias_hh", Parameter: c.BiasHH}} {
			if p.Parameter != nil {
				ps = append(ps, autograd.Named{Name: p.Name + suffix, Parameter: p.Parameter})
			}
		}
	}
	return ps
}

func (r *Recurrent) directions() int {
	if r.Bidirectional {
		return 2
	}
	return 1
}

// run leaves x, h0 and c0 to the caller, and frees its intermediate values on every tape. If
// lengths is nil, all rows have all steps.
func (r *Recurrent) run(t *autograd.Tape, x *autograd.Variable, lengths *Lengths, h0, c0 *autograd.Variable, last bool) (y, hn, cn *autograd.Variable) {
	if err := r.check(x, h0, c0); err != nil {
		t.Fail(fmt.Errorf("nn: a recurrent layer: %w", err))
	}
	if t.Err() != nil || !t.Begin(r.name(), present(x, h0, c0)...) {
		return t.Fail(nil), t.Fail(nil), t.Fail(nil)
	}
	defer t.Enter(r.Cells[0].WeightIH, "weight_ih_l0").Leave()
	flat := x.Rank() == 2 // there is no batch
	seq := chain{x, false}
	switch {
	case flat:
		seq.become(t.Unsqueeze(x, 1))
	case r.BatchFirst:
		seq.become(t.Transpose(x, 0, 1))
	}
	var rows *ends
	if lengths != nil {
		rows = lengths.on(t, seq.v)
		defer rows.release()
		if t.Err() != nil {
			return t.Fail(nil), t.Fail(nil), t.Fail(nil)
		}
		seq.become(rows.masked(seq.v))
	}
	var hs, cs []*autograd.Variable
	for i := 0; i < len(r.Cells); i += r.directions() {
		if i > 0 && r.Dropout > 0 && t.Training() {
			seq.become(t.Dropout(seq.v, r.Dropout))
		}
		layer := t.Enter(nil, "") // so that no direction is the last reader of the sequence
		var ys []*autograd.Variable
		for j := i; j < i+r.directions(); j++ {
			pass := r.recurrence(t, seq.v, j, stateOf(t, h0, j, flat), stateOf(t, c0, j, flat))
			pass.Last = last
			y, h, c := pass.run(t, rows)
			ys, hs, cs = append(ys, y), append(hs, h), append(cs, c)
		}
		layer.Leave()
		seq.become(ys[0])
		if len(ys) == 2 {
			seq.become(t.Cat(-1, ys...))
		}
	}
	if shape := seq.v.Shape(); flat && len(shape) == 3 {
		seq.become(t.Reshape(seq.v, shape[0], shape[2]))
	} else if r.BatchFirst {
		seq.become(t.Transpose(seq.v, 0, 1))
	}
	if last {
		hn = statesOf(t, hs, flat)
	}
	if last && r.Kind == tensor.LSTM {
		cn = statesOf(t, cs, flat)
	}
	return seq.v, hn, cn
}

// chain is a value in a sequence of computations. become releases it, if the chain owns it, after
// the next one was computed.
type chain struct {
	v   *autograd.Variable
	own bool
}

func (c *chain) become(v *autograd.Variable) {
	if c.own && v != c.v {
		c.v.Release()
	}
	c.v, c.own = v, true
}

// check returns an error for an invalid layer, sequence or initial state.
func (r *Recurrent) check(x, h0, c0 *autograd.Variable) error {
	if r == nil || len(r.Cells) == 0 || len(r.Cells)%r.directions() != 0 || r.Kind > tensor.GRU {
		return fmt.Errorf("%w: the layer is nil, or its number of cells is not layers times directions", autograd.ErrInvalid)
	}
	shape := x.Shape()
	if x.Tensor() != nil && len(shape) != 2 && len(shape) != 3 {
		return fmt.Errorf("%w %v: want sequences (steps, batch, n), or one (steps, n)", tensor.ErrShape, shape)
	}
	for _, s := range present(x, h0, c0)[1:] {
		if got := s.Shape(); s.Tensor() != nil && x.Tensor() != nil && (len(got) != len(shape) || got[0] != len(r.Cells)) {
			return fmt.Errorf("%w: initial states %v for %v: want %d of them, and a batch if the sequences have one", tensor.ErrShape, got, shape, len(r.Cells))
		}
	}
	return nil
}

// pass is the pass of one cell.
type pass struct{ autograd.Recurrence }

// run computes the states. For the reverse direction, rows with ends are reversed, so that it
// begins with their last elements.
func (p pass) run(t *autograd.Tape, rows *ends) (y, h, c *autograd.Variable) {
	if rows == nil {
		return t.Recurrent(p.Recurrence)
	}
	reverse := p.Reverse
	p.Reverse, p.Seen = false, rows.seen
	if reverse {
		p.X = rows.reverse(p.X)
		defer p.X.Release()
	}
	all, final, c := t.Recurrent(p.Recurrence)
	final.Release()
	defer all.Release()
	h, y = rows.lastOf(all), rows.masked(all)
	if reverse {
		defer y.Release()
		y = rows.reverse(y)
	}
	return y, h, c
}

// recurrence returns the pass of one cell.
func (r *Recurrent) recurrence(t *autograd.Tape, x *autograd.Variable, cell int, h0, c0 *autograd.Variable) pass {
	c := r.Cells[cell]
	return pass{autograd.Recurrence{Kind: r.Kind, Reverse: cell%r.directions() == 1, X: x, WeightIH: t.Param(c.WeightIH), WeightHH: t.Param(c.WeightHH),
		BiasIH: t.Param(c.BiasIH), BiasHH: t.Param(c.BiasHH), H0: h0, C0: c0}}
}

// present returns x, nil too, and the states that are not nil.
func present(x *autograd.Variable, states ...*autograd.Variable) []*autograd.Variable {
	all := []*autograd.Variable{x}
	for _, s := range states {
		if s != nil {
			all = append(all, s)
		}
	}
	return all
}

// stateOf returns the initial state (batch, n) of a cell, or nil.
func stateOf(t *autograd.Tape, states *autograd.Variable, cell int, flat bool) *autograd.Variable {
	if states == nil {
		return nil
	}
	one := t.Narrow(states, 0, cell, 1)
	if shape := one.Shape(); !flat && len(shape) == 3 {
		return t.Reshape(one, shape[1], shape[2])
	}
	return one
}

// statesOf joins the states of all cells, (batch, n) each.
func statesOf(t *autograd.Tape, states []*autograd.Variable, flat bool) *autograd.Variable {
	if !flat {
		for i, s := range states {
			states[i] = t.Unsqueeze(s, 0)
		}
	}
	if len(states) == 1 {
		return states[0]
	}
	return t.Cat(0, states...)
}

// RNN makes a recurrent layer of tanh, or of ReLU with [ReLUCell] (torch.nn.RNN). hidden is the
// number of states. It takes [Layers], [Bidirectional], [BatchFirst], [NoBias], [DropoutBetween].
// All weights and biases are drawn uniformly from ±1/sqrt(hidden), PyTorch's default.
func (in *Initializer) RNN(inputs, hidden int, options ...LayerOption) *RNN {
	o := in.options("RNN", options, append(recurrentOptions, "ReLUCell")...)
	kind := tensor.RNNTanh
	if o.sequence.relu {
		kind = tensor.RNNReLU
	}
	return (*RNN)(in.recurrent("RNN", kind, inputs, hidden, o))
}

// LSTM makes a layer of long short-term memory (torch.nn.LSTM), as [Initializer.RNN] does.
func (in *Initializer) LSTM(inputs, hidden int, options ...LayerOption) *LSTM {
	return (*LSTM)(in.recurrent("LSTM", tensor.LSTM, inputs, hidden, in.options("LSTM", options, recurrentOptions...)))
}

// GRU makes a layer of gated recurrent units (torch.nn.GRU), as [Initializer.RNN] does.
func (in *Initializer) GRU(inputs, hidden int, options ...LayerOption) *GRU {
	return (*GRU)(in.recurrent("GRU", tensor.GRU, inputs, hidden, in.options("GRU", options, recurrentOptions...)))
}

var recurrentOptions = []string{"Layers", "Bidirectional", "BatchFirst", "NoBias", "DropoutBetween"}

func (in *Initializer) recurrent(name string, kind tensor.RecurrentKind, inputs, hidden int, o layerOptions) *Recurrent {
	call := fmt.Sprintf("%s(%d, %d)", name, inputs, hidden)
	s := o.sequence
	if inputs < 1 || hidden < 1 || s.layers < 0 || !(s.dropout >= 0 && s.dropout <= 1) {
		in.fail(call, fmt.Errorf("%w: %d layers, dropout %v: want at least one input, state and layer, and a dropout of 0 to 1", autograd.ErrInvalid, s.layers, s.dropout))
	}
	r := &Recurrent{Kind: kind, Bidirectional: s.bidirectional, BatchFirst: s.batchFirst, Dropout: s.dropout}
	rows := [...]int{1, 1, 4, 3}[kind] * hidden
	for layer := range max(1, s.layers) {
		for range r.directions() {
			width := inputs
			if layer > 0 {
				width = hidden * r.directions()
			}
			c := RecurrentCell{WeightIH: in.fanIn(call, hidden, rows, width), WeightHH: in.fanIn(call, hidden, rows, hidden)}
			if !o.noBias {
				c.BiasIH, c.BiasHH = in.fanIn(call, hidden, rows), in.fanIn(call, hidden, rows)
			}
			r.Cells = append(r.Cells, c)
		}
	}
	return r
}
