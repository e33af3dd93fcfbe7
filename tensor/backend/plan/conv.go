package plan

// Conv is the plan of a convolution of two dimensions; one with one dimension has a height of 1.
// Arrays are row-major: x [N, Groups, C, In...], the weights [Groups, K, C, Window...], y [N,
// Groups, K, Out...]. The pairs are height and width. Element (p, q) of y sees those of x at
// p*Stride - Pad + r*Dilation.
type Conv struct {
	N, Groups, C, K               int // C and K are the channels of one group of x and y
	In, Out                       [2]int
	Window, Stride, Pad, Dilation [2]int
}

// Inner is the number of products in an element of y.
func (p *Conv) Inner() int { return p.C * p.Taps() }

// Taps is the number of elements of a window.
func (p *Conv) Taps() int { return p.Window[0] * p.Window[1] }

// Places is the number of elements of a channel of y.
func (p *Conv) Places() int { return p.Out[0] * p.Out[1] }

// Pixels is the number of elements of a channel of x.
func (p *Conv) Pixels() int { return p.In[0] * p.In[1] }

// Weights is the number of weights.
func (p *Conv) Weights() int { return p.Groups * p.K * p.Inner() }
