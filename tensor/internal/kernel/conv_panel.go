package kernel

import "github.com/cistern-ml/cistern/tensor/internal/gemm"

// A convolution is a matrix product whose one factor has an element for every use of an element of the image: it would be as
// many times larger as the window has taps. Panels of it, as the product's micro-kernel reads them, are made of the image when
// they are needed, and stay in a processor's cache until they are used up.

// zeros are as many as a row of a panel.
func zeros[T Float]() []T { return either[*[mostColumns]T](&zeros32, &zeros64)[:] }

const mostColumns = 32

// convDepth is that of a block of the inner dimension: a panel of what places see takes half of the first cache, and leaves room
// for the image that it is made of.
func convDepth[T Float](kernel gemm.Kernel[T]) int { return kernel.Depth() / 2 }

var (
	zeros32 [mostColumns]float32
	zeros64 [mostColumns]float64
)

// zeroRows sets the first n elements of rows of a panel to 0.
func zeroRows[T Float](k gemm.Kernel[T], dst []T, rows, n int) {
	if rows > 0 && n > 0 {
		gemm.Panel(k.Level(), dst, k.Columns(), zeros[T](), 1, 0, rows, n)
	}
}

// piece is a run of places in one row of one image, and what a tap sees of it: none of the first before, then inside, of which
// the first is at pixel, and none of the rest.
type piece struct {
	image, row, column, n int
	before, inside, pixel int
}

// piece is the first of what remains, at place from of all images', of n.
func (s *sight) piece(from, n int) piece {
	places := s.places()
	image, place := from/places, from%places
	row, column := place/s.out[1], place%s.out[1]
	return piece{image: image, row: row, column: column, n: min(n, s.out[1]-column)}
}

// pieces appends those of n places, and returns how many they are.
func (s *sight) pieces(to []piece, from, n int) int {
	for n > 0 {
		p := s.piece(from, n)
		to = append(to, p)
		from, n = from+p.n, n-p.n
	}
	return len(to)
}

// see sets what a tap sees, which is so far down and right.
func (p *piece) see(s *sight, down, right int) {
	p.before, p.inside, p.pixel = p.n, 0, 0
	down += p.row * s.step[0]
	if down < 0 || down >= s.in[0] {
		return
	}
	step := s.step[1]
	first := p.column*step + right
	last := s.in[1] - 1 - first
	p.before = 0
	if step == 1 { // divisions take as long as copying a few elements
		p.before = min(max(-first, 0), p.n)
		p.inside = max(0, min(last+1, p.n)-p.before)
	} else {
		if first < 0 {
			p.before = min((-first+step-1)/step, p.n)
		}
		if last >= 0 {
			p.inside = max(0, min(last/step+1, p.n)-p.before)
		}
	}
	p.pixel = down*s.in[1] + first + p.before*step
}

// tap is how far down and right of the first pixel that a place sees a tap is, less what padding moves it.
func (s *sight) tap(i int) (down, right int) {
	return s.start[0] + i/s.taps[1]*s.apart[0], s.start[1] + i%s.taps[1]*s.apart[1]
}

// placesPanel fills a panel for places: dst[i*width + j] is element k+i of what place from+j of all images' sees, for i below depth
// and j below n. Images are stride elements apart. Behind the last element of a place comes a 1.
func placesPanel[T Float](kernel gemm.Kernel[T], s *sight, dst, x []T, stride, k, depth, from, n int) {
	width, inner, pixels := kernel.Columns(), s.inner(), s.pixels()
	if k+depth > inner {
		depth = inner - k
		for j := range dst[depth*width:][:n] {
			dst[depth*width+j] = 1
		}
	}
	var runs [mostColumns]piece
	count := s.pieces(runs[:0], from, n)
	for i := 0; i < depth; {
		tap, channel := (k+i)/s.channels, (k+i)%s.channels
		rows := min(depth-i, s.channels-channel)
		down, right := s.tap(tap)
		to := dst[i*width:][:rows*width]
		whole := true
		for at := range runs[:count] {
			run := &runs[at]
			run.see(s, down, right)
			whole = whole && run.inside == run.n
		}
		if !whole {
			clear(to) // all of it is as fast as a few columns
		}
		at := 0
		for r := range runs[:count] {
			run := &runs[r]
			if run.inside > 0 {
				strip(kernel, to[at+run.before:], x[run.image*stride+channel*pixels+run.pixel:], pixels, s.step[1], rows, run.inside)
			}
			at += run.n
		}
		i += rows
	}
}

// strip copies n elements, step apart, of each of rows channels.
func strip[T Float](kernel gemm.Kernel[T], dst, src []T, pixels, step, rows, n int) {
	width := kernel.Columns()
	if step == 1 {
		gemm.Panel(kernel.Level(), dst, width, src, 1, pixels, rows, n)
		return
	}
	for i := range rows {
		line, from := dst[i*width:][:n], src[i*pixels:]
		for j := range line {
			line[j] = from[j*step]
		}
	}
}

// rowsPanel fills a panel for elements of what places see: dst[i*width + j] is element item+j of place from+i, for i below depth and
// j below items.
func rowsPanel[T Float](kernel gemm.Kernel[T], s *sight, dst, x []T, stride, from, depth, item, items int) {
	width, pixels := kernel.Columns(), s.pixels()
	for at := 0; at < depth; {
		run := s.piece(from+at, depth-at)
		for j := 0; j < items; {
			tap, channel := (item+j)/s.channels, (item+j)%s.channels
			n := min(items-j, s.channels-channel)
			down, right := s.tap(tap)
			run.see(s, down, right)
			to := dst[at*width+j:]
			zeroRows(kernel, to, run.before, n)
			if run.inside > 0 {
				gemm.Panel(kernel.Level(), to[run.before*width:], width, x[run.image*stride+channel*pixels+run.pixel:], pixels, s.step[1], run.inside, n)
			}
			if seen := run.before + run.inside; seen < run.n {
				zeroRows(kernel, to[seen*width:], run.n-seen, n)
			}
			j += n
		}
		at += run.n
	}
}
