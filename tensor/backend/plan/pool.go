package plan

// Pool is the plan of a pooling of two dimensions: planes of In elements become planes of Out. The
// pairs are height and width. Element (p, q) of a result is of the window whose first element is at
// p*Stride - Pad; if Adaptive it is of the part [p*In/Out, (p+1)*In/Out) rounded outwards.
type Pool struct {
	Planes                               int
	In, Out                              [2]int
	Window, Stride, Pad, Dilation        [2]int
	Adaptive, ExcludePadding, HasDivisor bool
	Divisor                              int // of averages, in place of the number of elements, if HasDivisor
}

// Pixels is the number of elements of a plane.
func (p *Pool) Pixels() int { return p.In[0] * p.In[1] }

// First returns the position in dimension d of the first element of window i that is not in the
// padding before the plane.
func (p *Pool) First(d, i int) int {
	at := i*p.Stride[d] - p.Pad[d]
	if at < 0 {
		at += (-at + p.Dilation[d] - 1) / p.Dilation[d] * p.Dilation[d]
	}
	return at
}

// End returns the position in dimension d after the last element of window i.
func (p *Pool) End(d, i int) int {
	return min(p.In[d], i*p.Stride[d]-p.Pad[d]+(p.Window[d]-1)*p.Dilation[d]+1)
}
