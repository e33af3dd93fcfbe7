package kernel

// inputUnits is the number of parts that the gradient of x is computed in: images of a group, and blocks of their channels.
func (p *Conv) inputUnits() (units, blocks int) {
	blocks = p.blocks(p.N * p.Groups)
	return p.N * p.Groups * blocks, blocks
}

// inputScratch is the scratch memory of one goroutine: a tile of products.
func (p *Conv) inputScratch(blocks int) int {
	return p.tile() * tilesOf(p.C, blocks) * p.Window[0] * p.Window[1]
}

func (p *Conv) weights() int { return p.Groups * p.K * p.Inner() }

// InputGradScratch is the number of elements of scratch memory that ConvolveInputGrad needs on so many processors.
func (p *Conv) InputGradScratch(procs int) int {
	units, blocks := p.inputUnits()
	return p.weights() + min(procs, goroutines(units, p.K*p.Inner()*p.Places()/blocks))*p.inputScratch(blocks)
}

// ConvolveInputGrad sets dx to the gradient of x, plus the bias of each channel if there is one: then it is a transposed
// convolution of dy.
func ConvolveInputGrad[T Float](p *Conv, dx, dy, w, bias, scratch []T) {
	inner, places, tile, window := p.Inner(), p.Places(), p.tile(), p.Window[0]*p.Window[1]
	turned, scratch := scratch[:p.weights()], scratch[p.weights():]
	for g := range p.Groups {
		Transpose(turned[g*p.K*inner:][:p.K*inner], w[g*p.K*inner:][:p.K*inner], p.K, inner)
	}
	units, blocks := p.inputUnits()
	splitScratch(units, scratch, p.inputScratch(blocks), func(tmp []T, unit int) {
		image, block := unit/blocks, unit%blocks
		group := image % p.Groups
		c, to := block*p.C/blocks, (block+1)*p.C/blocks
		out := dx[image*p.C*p.Pixels():][:p.C*p.Pixels()]
		for i := c; i < to; i++ {
			channel := out[i*p.Pixels():][:p.Pixels()]
			clear(channel)
			if bias != nil {
				for j := range channel {
					channel[j] = bias[group*p.C+i]
				}
			}
		}
		wg, g := turned[(group*inner+c*window)*p.K:], dy[image*p.K*places:][:p.K*places]
		rows := (to - c) * window
		for from := 0; from < places; from += tile {
			n := min(tile, places-from)
			cols := tmp[:rows*n]
			plainProduct(rows, n, p.K, wg, p.K, g[from:], places, false, cols, n)
			raise(p, out, cols, from, n, c, to)
		}
	})
}

// raise adds what lowerColumns would have read from x back to it.
func raise[T Float](p *Conv, x, cols []T, from, n, c, to int) {
	for ; c < to; c++ {
		in := x[c*p.Pixels():][:p.Pixels()]
		for r := range p.Window[0] {
			for s := range p.Window[1] {
				raiseRow(p, in, cols[:n], from, r*p.Dilation[0]-p.Pad[0], s*p.Dilation[1]-p.Pad[1])
				cols = cols[n:]
			}
		}
	}
}

func raiseRow[T Float](p *Conv, in, row []T, from, down, right int) {
	lo, hi := inside(p.Out[1], p.In[1], p.Stride[1], right)
	for len(row) > 0 {
		i, j := from/p.Out[1], from%p.Out[1]
		n := min(p.Out[1]-j, len(row))
		part := row[:n]
		row, from = row[n:], from+n
		h := i*p.Stride[0] + down
		a, b := min(max(lo-j, 0), n), min(max(hi-j, 0), n)
		if h < 0 || h >= p.In[0] || a >= b {
			continue
		}
		dst := in[h*p.In[1]+(a+j)*p.Stride[1]+right:]
		for k, v := range part[a:b] {
			dst[k*p.Stride[1]] += v
		}
	}
}

// weightUnits is the number of parts of the images whose gradients of the weights are summed apart, with at most about
// partialElements elements for all, and of blocks of x's channels in each.
func (p *Conv) weightUnits() (parts, blocks int) {
	parts = min(max(1, partialElements/p.weights()), 8, p.N)
	return parts, p.blocks(parts * p.Groups)
}

const partialElements = 256 << 10

func (p *Conv) weightScratch(blocks int) int {
	return p.tile() * tilesOf(p.C, blocks) * p.Window[0] * p.Window[1]
}

// WeightGradScratch is the number of elements of scratch memory that ConvolveWeightGrad needs on so many processors.
func (p *Conv) WeightGradScratch(procs int) int {
	parts, blocks := p.weightUnits()
	units := parts * p.Groups * blocks
	n := min(procs, goroutines(units, p.N*p.Groups*p.K*p.Inner()*p.Places()/units)) * p.weightScratch(blocks)
	if parts > 1 {
		n += parts * p.weights()
	}
	return n
}

// ConvolveWeightGrad sets dw to the gradient of the weights.
func ConvolveWeightGrad[T Float](p *Conv, dw, dy, x, scratch []T) {
	inner, places, tile, window := p.Inner(), p.Places(), p.tile(), p.Window[0]*p.Window[1]
	parts, blocks := p.weightUnits()
	sums := dw
	if parts > 1 {
		sums, scratch = scratch[:parts*len(dw)], scratch[parts*len(dw):]
	}
	splitScratch(parts*p.Groups*blocks, scratch, p.weightScratch(blocks), func(tmp []T, unit int) {
		part, group, block := unit/blocks/p.Groups, unit/blocks%p.Groups, unit%blocks
		c, to := block*p.C/blocks, (block+1)*p.C/blocks
		rows := (to - c) * window
		out := sums[part*len(dw)+group*p.K*inner+c*window:]
		add := false
		for i := part * p.N / parts; i < (part+1)*p.N/parts; i++ {
			image := i*p.Groups + group
			in, g := x[image*p.C*p.Pixels():][:p.C*p.Pixels()], dy[image*p.K*places:][:p.K*places]
			for from := 0; from < places; from += tile {
				n := min(tile, places-from)
				lowerColumns(p, tmp, in, from, n, c, to)
				product(p.K, rows, n, g[from:], places, tmp, n, add, out, inner)
				add = true
			}
		}
	})
	if parts == 1 {
		return
	}
	split(len(dw), grainCheap/parts, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			sum := 0.0
			for part := range parts {
				sum += float64(sums[part*len(dw)+i])
			}
			dw[i] = T(sum)
		}
	})
}
