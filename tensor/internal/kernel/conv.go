package kernel

// Conv is the plan of a convolution of two dimensions; one with one dimension has a height of 1. Arrays are row-major:
// x [N, Groups, C, In...], the weights [Groups, K, C, Window...], y [N, Groups, K, Out...]. The pairs are height and width.
// Element (p, q) of y sees those of x at p*Stride - Pad + r*Dilation.
type Conv struct {
	N, Groups, C, K               int // C and K are the channels of one group of x and y
	In, Out                       [2]int
	Window, Stride, Pad, Dilation [2]int
}

// Convolutions are matrix products, whose one factor is x with an element for every use of it: C*Window for each of y's
// places. It is made of a tile of places at a time, for one image and group, so that it stays in a processor's cache,
// and every goroutine has a tile of scratch memory of its own. Tiles depend on the plan alone, and so do results.
const (
	tileElements = 64 << 10
	minPlaces    = 64
	maxPlaces    = 1024
	convWorkers  = 16 // at most, for the sake of scratch memory
)

// Inner is the number of products in an element of y.
func (p *Conv) Inner() int { return p.C * p.Window[0] * p.Window[1] }

// Places is the number of elements of a channel of y.
func (p *Conv) Places() int { return p.Out[0] * p.Out[1] }

// Pixels is the number of elements of a channel of x.
func (p *Conv) Pixels() int { return p.In[0] * p.In[1] }

// tile is the number of places that are done at a time.
func (p *Conv) tile() int { return min(max(tileElements/p.Inner(), minPlaces), maxPlaces, p.Places()) }

// blocks is the number of parts that the channels of x are cut into, so that few images are work for several goroutines.
func (p *Conv) blocks(units int) int { return min(max(1, convWorkers/max(1, units)), p.C) }

// goroutines is how many goroutines do units of so many multiply-adds.
func goroutines(units, flops int) int {
	return min(max(1, units/max(1, grainFlops/max(1, flops))), convWorkers, max(1, units))
}

// scratch is what Convolve takes of it for each goroutine.
func (p *Conv) scratch() int { return p.tile() * p.Inner() }

func (p *Conv) units() int { return p.N * p.Groups * tilesOf(p.Places(), p.tile()) }

func tilesOf(n, tile int) int { return (n + tile - 1) / tile }

// Scratch is the number of elements of scratch memory that Convolve needs on so many processors.
func (p *Conv) Scratch(procs int) int {
	return min(procs, goroutines(p.units(), p.K*p.Inner()*p.tile())) * p.scratch()
}

// Convolve sets y to the convolution of x, plus the bias of each channel if there is one.
func Convolve[T Float](p *Conv, y, x, w, bias, scratch []T) {
	inner, places, tile := p.Inner(), p.Places(), p.tile()
	perImage := tilesOf(places, tile)
	splitScratch(p.units(), scratch, p.scratch(), func(tmp []T, unit int) {
		image, from := unit/perImage, unit%perImage*tile // image counts those of all groups
		n := min(tile, places-from)
		group := image % p.Groups
		in, out := x[image*p.C*p.Pixels():][:p.C*p.Pixels()], y[image*p.K*places+from:]
		wg := w[group*p.K*inner:][:p.K*inner]
		lowerColumns(p, tmp, in, from, n, 0, p.C)
		plainProduct(p.K, n, inner, wg, inner, tmp, n, false, out, places)
		if bias != nil {
			for k, b := range bias[group*p.K:][:p.K] {
				for i := range out[k*places:][:n] {
					out[k*places+i] += b
				}
			}
		}
	})
}

// splitScratch calls f for every unit of [0, n), on as many goroutines as have each of scratch memory.
func splitScratch[T Float](n int, scratch []T, each int, f func(tmp []T, unit int)) {
	parts := max(1, len(scratch)/max(1, each))
	split(parts, 1, func(lo, hi int) {
		for part := lo; part < hi; part++ {
			for unit := part * n / parts; unit < (part+1)*n/parts; unit++ {
				f(scratch[part*each:][:each], unit)
			}
		}
	})
}

// inside is the range of the indices below out for which start + index*stride is inside of [0, in).
func inside(out, in, stride, start int) (lo, hi int) {
	if start < 0 {
		lo = (-start + stride - 1) / stride
	}
	if start < in {
		hi = (in-1-start)/stride + 1
	}
	return min(lo, out), min(max(hi, lo), out)
}

// lowerColumns sets dst to x with a row for every element of the window and a column for each of n places, beginning with
// from: [(to-c)*Window, n].
func lowerColumns[T Float](p *Conv, dst, x []T, from, n, c, to int) {
	at := 0
	for ; c < to; c++ {
		in := x[c*p.Pixels():][:p.Pixels()]
		for r := range p.Window[0] {
			for s := range p.Window[1] {
				lowerRow(p, dst[at:at+n], in, from, r*p.Dilation[0]-p.Pad[0], s*p.Dilation[1]-p.Pad[1])
				at += n
			}
		}
	}
}

// lowerRow is one row of lowerColumns: down and right are where the window's element lies beside the place.
func lowerRow[T Float](p *Conv, dst, in []T, from, down, right int) {
	lo, hi := inside(p.Out[1], p.In[1], p.Stride[1], right)
	for len(dst) > 0 {
		i, j := from/p.Out[1], from%p.Out[1]
		n := min(p.Out[1]-j, len(dst))
		row := dst[:n]
		dst, from = dst[n:], from+n
		h := i*p.Stride[0] + down
		if h < 0 || h >= p.In[0] {
			clear(row)
			continue
		}
		a, b := min(max(lo-j, 0), n), min(max(hi-j, 0), n)
		clear(row[:a])
		clear(row[b:])
		if a >= b {
			continue
		}
		src := in[h*p.In[1]+(a+j)*p.Stride[1]+right:]
		if p.Stride[1] == 1 {
			copy(row[a:b], src)
			continue
		}
		for k := range row[a:b] {
			row[a+k] = src[k*p.Stride[1]]
		}
	}
}
