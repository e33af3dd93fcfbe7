package autograd

import "github.com/cistern-ml/cistern/tensor"

// Sort returns the elements of x in ascending order along a dimension, or descending, and their
// indices in it, int32 (torch.sort with stable=True); see [tensor.Layers.Sort]. The index is a
// constant.
func (t *Tape) Sort(x *Variable, axis int, descending bool) (values, index *Variable) {
	return t.sort("Sort", x, &sorting{axis: axis, descending: descending, all: true})
}

// TopK returns the k greatest elements of x along a dimension, or the k smallest, sorted, and their
// indices in it, int32 (torch.topk); see [tensor.Layers.TopK]. The index is a constant.
func (t *Tape) TopK(x *Variable, k, axis int, largest bool) (values, index *Variable) {
	return t.sort("TopK", x, &sorting{axis: axis, k: k, descending: largest})
}

func (t *Tape) sort(op string, x *Variable, s *sorting) (values, index *Variable) {
	values = opSort.applyAs(op, t, &sorted{s}, x)
	return values, opSortedIndex.applyAs(op, t, &sortedIndex{sorted{s}})
}

// sorting is one use of Sort or TopK.
type sorting struct {
	axis, k         int
	descending, all bool
	index           *tensor.Tensor // of Forward, for the second result
}

// sorted is the operation whose result is the values.
type sorted struct{ *sorting }

var opSort = newOp[sorted]("Sort")

func (s *sorted) Forward(c *Call) (values *tensor.Tensor, err error) {
	rt, ctx, x := c.Runtime(), c.Context(), c.Input(0)
	if s.all {
		values, s.index, err = rt.Sort(ctx, x, s.axis, s.descending)
	} else {
		values, s.index, err = rt.TopK(ctx, x, s.k, s.axis, s.descending)
	}
	if err != nil {
		return nil, err
	}
	own, err := rt.Share(ctx, s.index)
	return c.saving(values, err, own)
}

func (s *sorted) Backward(c *Call, g *tensor.Tensor) error {
	d, err := c.Runtime().SortGrad(c.Context(), g, s.axis, c.Saved()[0], c.dims(c.Input(0))...)
	return c.GiveReplacing(0, g, d, err)
}

// sortedIndex is the operation whose result is the index that the values' operation has made.
type sortedIndex struct{ sorted }

var opSortedIndex = newOp[sortedIndex]("SortedIndex")

func (*sortedIndex) constant() {}

func (p *sortedIndex) Forward(*Call) (*tensor.Tensor, error) { return p.index, nil }

// ArgMax returns the index of the greatest element along an axis, by default the last dimension, as
// int32 (torch.argmax); see [tensor.Reductions.ArgMax]. It is a constant.
func (t *Tape) ArgMax(x *Variable, axis ...int) *Variable {
	return opExtremePlace.applyAs("ArgMax", t, &extremePlace{greatest: true, axis: newDimensions(axis)}, x)
}

// ArgMin is ArgMax of the smallest element (torch.argmin).
func (t *Tape) ArgMin(x *Variable, axis ...int) *Variable {
	return opExtremePlace.applyAs("ArgMin", t, &extremePlace{axis: newDimensions(axis)}, x)
}

// extremePlace is one use of ArgMax or ArgMin.
type extremePlace struct {
	greatest bool
	axis     dimensions
}

var opExtremePlace = newOp[extremePlace]("ArgMax")

func (*extremePlace) constant() {}

func (e *extremePlace) Forward(c *Call) (*tensor.Tensor, error) {
	if e.greatest {
		return c.Runtime().ArgMax(c.Context(), c.Input(0), e.axis.list()...)
	}
	return c.Runtime().ArgMin(c.Context(), c.Input(0), e.axis.list()...)
}

func (*extremePlace) Backward(*Call, *tensor.Tensor) error { return nil }

// CumSum returns the sums of the elements up to each along a dimension (torch.cumsum).
//
//go:noinline // as Add
func (t *Tape) CumSum(x *Variable, axis int) *Variable {
	return opCumSum.Apply(t, cumSum{axis}, x)
}

type cumSum struct{ axis int }

var opCumSum = newOp[cumSum]("CumSum")

func (s *cumSum) Forward(c *Call) (*tensor.Tensor, error) {
	return c.Runtime().CumSum(c.Context(), c.Input(0), s.axis)
}

func (s *cumSum) Backward(c *Call, g *tensor.Tensor) error {
	d, err := c.Runtime().CumSumGrad(c.Context(), g, s.axis)
	return c.GiveReplacing(0, g, d, err)
}
