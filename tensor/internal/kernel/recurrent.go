package kernel

import "math"

// A step of a recurrent layer is a product of the previous state and the hidden weights, followed
// by one launch for everything else, because a step has few numbers and a launch costs the same for
// few as for many. Cells compute in float64 and round the stored results.

// Recurrent is a kind of recurrent layer.
type Recurrent uint8

const (
	RNNTanh Recurrent = iota // h' = tanh(x + h)
	RNNReLU                  // h' = max(x + h, 0)
	LSTM                     // gates input, forget, cell, output
	GRU                      // gates reset, update, new
)

// Gates returns the number of gates, which is the number of a product's results per number of the
// state.
func (k Recurrent) Gates() int { return [...]int{1, 1, 4, 3}[k] }

// each calls step for the n numbers of states with size numbers each. step gets the batch row, the
// number's position, and its position in the row.
func (k Recurrent) each(n, size int, step func(b, at, i int)) {
	split(n/max(1, size), max(1, grainMath/max(1, k.Gates()*size)), func(lo, hi int) {
		for b := lo; b < hi; b++ {
			for i := range size {
				step(b, b*size+i, i)
			}
		}
	})
}

// Cell holds the arrays of a step, with (batch, Size) numbers each; the gates are (batch, gates,
// Size). Absent arrays are nil: the previous state in the first step, a missing bias, and results
// that are not kept.
type Cell[T Float] struct {
	Kind Recurrent
	Size int

	Gates  []T // the product of the input, replaced by the gates; unchanged for an RNN
	Hidden []T // the product of the previous state
	Bias   []T // of Hidden, (gates, Size)
	H      []T // the previous state
	C      []T // an LSTM's previous cell state
	NewH   []T
	NewC   []T
	New    []T // the part of a GRU's new gate that comes from the state, if it is kept
}

// hidden returns what the state contributes to gate g of element i of batch row b.
func (c *Cell[T]) hidden(b, g, i int) float64 {
	return orElse(c.Hidden, (b*c.Kind.Gates()+g)*c.Size+i, 0) + orElse(c.Bias, g*c.Size+i, 0)
}

// StepCell computes a step.
func StepCell[T Float](c *Cell[T]) {
	c.Kind.each(len(c.NewH), c.Size, c.step)
}

// step computes element i of batch row b; at is its position in arrays without gates.
func (c *Cell[T]) step(b, at, i int) {
	row := b*c.Kind.Gates()*c.Size + i
	sum := func(g int) float64 { return float64(c.Gates[row+g*c.Size]) + c.hidden(b, g, i) }
	put := func(g int, v float64) { c.Gates[row+g*c.Size] = T(v) }
	switch c.Kind {
	case RNNTanh:
		c.NewH[at] = T(math.Tanh(sum(0)))
	case RNNReLU:
		v := sum(0)
		if v < 0 {
			v = 0
		}
		c.NewH[at] = T(v)
	case LSTM:
		in, forget, cell, out := sigmoid(sum(0)), sigmoid(sum(1)), math.Tanh(sum(2)), sigmoid(sum(3))
		state := forget*orElse(c.C, at, 0) + in*cell
		c.NewC[at], c.NewH[at] = T(state), T(out*math.Tanh(state))
		put(0, in)
		put(1, forget)
		put(2, cell)
		put(3, out)
	case GRU:
		reset, update := sigmoid(sum(0)), sigmoid(sum(1))
		from := c.hidden(b, 2, i)
		fresh := math.Tanh(float64(c.Gates[row+2*c.Size]) + reset*from)
		c.NewH[at] = T(fresh + update*(orElse(c.H, at, 0)-fresh))
		put(0, reset)
		put(1, update)
		put(2, fresh)
		if c.New != nil {
			c.New[at] = T(from)
		}
	}
}

// CellGrad holds the arrays of a step's gradient. DY is the gradient of the step's result, and DH
// the gradient from the next step's product; they are added.
type CellGrad[T Float] struct {
	Kind Recurrent
	Size int

	Gates []T // after the step; replaced by the gradient of the input's product
	// DHidden is a GRU's gradient of the state's product. For other kinds it equals Gates.
	DHidden []T
	DY, DH  []T
	// Carry passes from step to step outside of the products: the gradient of an LSTM's cell state,
	// or of a GRU's state. It is read unless First is set, and written.
	Carry []T
	First bool
	H     []T // a GRU's previous state
	C     []T // an LSTM's previous cell state
	NewH  []T // an RNN's state
	NewC  []T // an LSTM's cell state
	New   []T // a GRU's, see Cell
}

// StepCellGrad computes the gradient of a step.
func StepCellGrad[T Float](c *CellGrad[T]) {
	c.Kind.each(len(c.DY), c.Size, c.step)
}

func (c *CellGrad[T]) step(b, at, i int) {
	row := b*c.Kind.Gates()*c.Size + i
	gate := func(g int) float64 { return float64(c.Gates[row+g*c.Size]) }
	put := func(g int, v float64) { c.Gates[row+g*c.Size] = T(v) }
	dh := float64(c.DY[at]) + orElse(c.DH, at, 0)
	carry := 0.0
	if c.Carry != nil && !c.First {
		carry = float64(c.Carry[at])
	}
	switch c.Kind {
	case RNNTanh:
		h := float64(c.NewH[at])
		put(0, dh*((1-h)*(1+h)))
	case RNNReLU:
		if c.NewH[at] <= 0 {
			dh = 0
		}
		put(0, dh)
	case LSTM:
		in, forget, cell, out := gate(0), gate(1), gate(2), gate(3)
		t := math.Tanh(float64(c.NewC[at]))
		dc := carry + dh*out*((1-t)*(1+t))
		put(0, dc*cell*in*(1-in))
		put(1, dc*orElse(c.C, at, 0)*forget*(1-forget))
		put(2, dc*in*((1-cell)*(1+cell)))
		put(3, dh*t*out*(1-out))
		c.Carry[at] = T(dc * forget)
	case GRU:
		reset, update, fresh := gate(0), gate(1), gate(2)
		dh += carry
		dnew := dh * (1 - update) * ((1 - fresh) * (1 + fresh))
		dreset := dnew * float64(c.New[at]) * reset * (1 - reset)
		dupdate := dh * (orElse(c.H, at, 0) - fresh) * update * (1 - update)
		put(0, dreset)
		put(1, dupdate)
		put(2, dnew)
		c.DHidden[row], c.DHidden[row+c.Size], c.DHidden[row+2*c.Size] = T(dreset), T(dupdate), T(dnew*reset)
		c.Carry[at] = T(dh * update)
	}
}
