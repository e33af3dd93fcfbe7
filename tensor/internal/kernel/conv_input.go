package kernel

import "github.com/cistern-ml/cistern/tensor/backend/plan"

// The gradient of x is a correlation of dy: an element of x sees those elements of dy in whose
// windows it was. With a stride, neighbouring elements of x use different taps, but elements a
// stride apart use the same ones. So each phase of the stride is a correlation of its own, with the
// taps that fall on it.

// phaseOf returns which elements of dy element phase + i*stride of a dimension of x sees: with taps
// first, first+every, … it was seen by elements i+start, i+start+apart, … There are count of them,
// which may be 0.
func phaseOf(p *plan.Conv, d, phase int) (first, every, count, start, apart int) {
	stride, dilation := p.Stride[d], p.Dilation[d]
	common := commonDivisor(stride, dilation)
	every, apart = stride/common, -dilation/common
	for first < min(every, p.Window[d]) && (phase+p.Pad[d]-first*dilation)%stride != 0 {
		first++
	}
	if first < min(every, p.Window[d]) {
		count = (p.Window[d]-1-first)/every + 1
		start = (phase + p.Pad[d] - first*dilation) / stride
	}
	return first, every, count, start, apart
}

func commonDivisor(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// inputGrad plans the gradient of x.
func (c *correlate[T]) inputGrad(whole *plan.Conv, bias []T) {
	p := flat(whole)
	c.groups, c.images, c.outputs, c.outPixels, c.bias, c.fill = p.Groups, p.N, p.C, p.Pixels(), bias, false
	c.inElements, c.weightElements = p.K*p.Places(), p.K*p.Inner()
	stride := p.Stride
	for i := range min(stride[0], p.In[0]) {
		first0, every0, count0, start0, apart0 := phaseOf(&p, 0, i)
		if count0 == 0 {
			c.fill = true
			continue
		}
		for j := range min(stride[1], p.In[1]) {
			first1, every1, count1, start1, apart1 := phaseOf(&p, 1, j)
			if count1 == 0 {
				c.fill = true
				continue
			}
			k := correlation{
				sight: sight{channels: p.K, in: p.Out, out: [2]int{(p.In[0]-1-i)/stride[0] + 1, (p.In[1]-1-j)/stride[1] + 1}, taps: [2]int{count0, count1},
					step: [2]int{1, 1}, start: [2]int{start0, start1}, apart: [2]int{apart0, apart1}},
				weight: first0*p.Window[1] + first1, weightOutput: p.Taps(), weightChannel: p.Inner(), weightTap: [2]int{every0 * p.Window[1], every1},
				first: i*p.In[1] + j, next: [2]int{stride[0] * p.In[1], stride[1]},
			}
			k.joined = stride != [2]int{1, 1} || c.joins(k.places())
			c.correlations = append(c.correlations, k)
		}
	}
}

// InputGradScratch returns the largest number of elements of scratch memory that ConvolveInputGrad
// uses.
func InputGradScratch[T Float](p *plan.Conv, bias bool) int {
	c := takeCorrelate[T]()
	defer c.done()
	c.inputGrad(p, someBias[T](bias))
	return c.scratch()
}

// ConvolveInputGrad sets dx to the gradient of x, plus the bias of each channel unless bias is nil.
// With a bias it is a transposed convolution of dy.
func ConvolveInputGrad[T Float](p *plan.Conv, dx, dy, w, bias, scratch []T) {
	c := takeCorrelate[T]()
	defer c.done()
	c.inputGrad(p, bias)
	c.out, c.in, c.weights = dx, dy, w
	c.run(scratch)
}
