package tensor

import (
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// ConvConfig configures the window of a convolution. The zero value is PyTorch's default. Each list
// has one number for every dimension of the window, or one number for all.
type ConvConfig struct {
	Stride  []int // nil: 1
	Padding []int // zeros on both sides; nil: 0
	// Same is padding="same": zeros that give a result of x's size. If their number is odd, one
	// more is at the end.
	Same          bool
	Dilation      []int // nil: 1
	OutputPadding []int // added to the size of a transposed convolution's result; nil: 0
	Groups        int   // 0: 1
}

// eachDim returns list as a number for each of n dimensions, 1 or 2. Each is at least least; an
// empty list gives standard.
func eachDim(op, name string, list []int, n, standard, least int) (each [2]int, err error) {
	switch len(list) {
	case 0:
		return [2]int{standard, standard}, nil
	case 1:
		each = [2]int{list[0], list[0]}
	case n:
		copy(each[:], list)
	default:
		return each, fmt.Errorf("tensor: %s: %w: %s %v: want one number, or %d", op, ErrInvalid, name, list, n)
	}
	for _, v := range each[:n] {
		if v < least || v > math.MaxInt32 {
			return each, fmt.Errorf("tensor: %s: %w: %s %v: want numbers of at least %d, and below 2^31", op, ErrInvalid, name, slices.Clone(each[:n]), least)
		}
	}
	return each, nil
}

// planConv plans a convolution of x by w, or a transposed one, and returns the result's shape. dims
// is the number of dimensions of the window, 1 or 2.
func (rt *Runtime) planConv(op string, c ConvConfig, x, w Shape, dims int, transposed bool) (*plan.Conv, Shape, error) {
	k := planKey{kind: planConvolution}
	k.lists(x, w, c.Stride, c.Padding, c.Dilation, c.OutputPadding)
	k.add(c.Groups, dims)
	k.flags(c.Same, transposed)
	return shapedBy(rt, &k, func() (*plan.Conv, Shape, error) { return c.plan(op, x, w, dims, transposed) })
}

// plan computes what planConv caches.
func (c ConvConfig) plan(op string, x, w Shape, dims int, transposed bool) (*plan.Conv, Shape, error) {
	if len(w) != dims+2 || (len(x) != dims+2 && len(x) != dims+1) {
		return nil, nil, fmt.Errorf("tensor: %s: %w: x is %v and the weights %v: want %d dimensions, or %d for x of one image", op, ErrShape, x, w, dims+2, dims+1)
	}
	groups := max(1, c.Groups)
	n, channels := 1, x[len(x)-dims-1]
	if len(x) == dims+2 {
		n = x[0]
	}
	y := slices.Clone(x)
	inputs, outputs := w[1], w[0]
	if transposed {
		inputs, outputs = w[0]/groups, w[1]*groups
	}
	switch {
	case c.Groups < 0:
		return nil, nil, fmt.Errorf("tensor: %s: %w: %d groups: want at least 1, or 0 for 1", op, ErrInvalid, c.Groups)
	case slices.Min(w) < 1:
		return nil, nil, fmt.Errorf("tensor: %s: %w: the weights are %v: want no dimension of 0", op, ErrShape, w)
	case w[0]%groups != 0:
		return nil, nil, fmt.Errorf("tensor: %s: %w: the weights are %v: want a first dimension that %d groups divide", op, ErrShape, w, groups)
	case inputs > math.MaxInt/groups || inputs*groups != channels:
		return nil, nil, fmt.Errorf("tensor: %s: %w: x is %v and the weights %v: %d groups of %d channels want x to have %d channels, and it has %d",
			op, ErrShape, x, w, groups, inputs, inputs*groups, channels)
	case !transposed && c.OutputPadding != nil:
		return nil, nil, fmt.Errorf("tensor: %s: %w: output padding is for transposed convolutions", op, ErrInvalid)
	}
	y[len(y)-dims-1] = outputs
	p := &plan.Conv{N: n, Groups: groups, C: inputs, K: outputs / groups,
		In: [2]int{1, 1}, Out: [2]int{1, 1}, Window: [2]int{1, 1}, Stride: [2]int{1, 1}, Dilation: [2]int{1, 1}}
	if err := c.windows(op, p, x[len(x)-dims:], y[len(y)-dims:], w[2:], transposed); err != nil {
		return nil, nil, err
	}
	if transposed {
		p.C, p.K, p.In, p.Out = p.K, p.C, p.Out, p.In
	}
	return p, y, nil
}

// windows sets the dimensions of the plan and of the result y, from those of x and the window.
func (c ConvConfig) windows(op string, p *plan.Conv, x, y, window Shape, transposed bool) error {
	dims := len(x)
	stride, err := eachDim(op, "stride", c.Stride, dims, 1, 1)
	if err != nil {
		return err
	}
	padding, err := eachDim(op, "padding", c.Padding, dims, 0, 0)
	if err != nil {
		return err
	}
	dilation, err := eachDim(op, "dilation", c.Dilation, dims, 1, 1)
	if err != nil {
		return err
	}
	more, err := eachDim(op, "output padding", c.OutputPadding, dims, 0, 0)
	if err != nil {
		return err
	}
	if c.Same && (transposed || c.Padding != nil || slices.Max(stride[:dims]) > 1) {
		return fmt.Errorf("tensor: %s: %w: padding to the same size is for convolutions of stride 1 without another padding", op, ErrInvalid)
	}
	for d := range dims {
		at := 2 - dims + d
		span := int64(dilation[d]) * (int64(window[d]) - 1)
		before, both, size := int64(padding[d]), 2*int64(padding[d]), int64(x[d])
		if c.Same {
			before, both = span/2, span
		}
		var out int64
		if transposed {
			if more[d] >= max(stride[d], dilation[d]) {
				return fmt.Errorf("tensor: %s: %w: output padding %v: want less than the stride %v or the dilation %v", op, ErrInvalid,
					slices.Clone(more[:dims]), slices.Clone(stride[:dims]), slices.Clone(dilation[:dims]))
			}
			out = (size-1)*int64(stride[d]) - both + span + int64(more[d]) + 1
		} else if out = size + both - span - 1; out >= 0 {
			out = out/int64(stride[d]) + 1
		}
		if out < 1 || out > math.MaxInt || before > math.MaxInt32 || (transposed && size > math.MaxInt32) {
			return fmt.Errorf("tensor: %s: %w: dimension %d of x is %d: with a window of %d, dilation %d, padding %d and stride %d the result's would be %d: want at least 1",
				op, ErrShape, d, size, window[d], dilation[d], padding[d], stride[d], out)
		}
		y[d] = int(out)
		p.In[at], p.Out[at], p.Window[at], p.Stride[at], p.Pad[at], p.Dilation[at] = x[d], y[d], window[d], stride[d], int(before), dilation[d]
	}
	return nil
}
