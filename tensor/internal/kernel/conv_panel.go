package kernel

import "github.com/cistern-ml/cistern/tensor/internal/gemm"

// A convolution is a matrix product. One of its factors has an element for every use of an element
// of the image, so it would be larger than the image by the number of the window's taps. It is
// never stored as a whole: panels of it, in the layout of the product's micro-kernel, are made of
// the image when they are needed, and stay in a processor's cache until they were used.

// zeros returns as many zeros as a row of a panel has.
func zeros[T Float]() []T { return either[*[mostColumns]T](&zeros32, &zeros64)[:] }

const mostColumns = 32

// convDepth returns the depth of a block of the inner dimension. A panel of what positions see
// takes half of the first-level cache, so that the image from which it is made fits too.
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

// piece is a run of positions in one row of one image, and what a tap sees of it. The first before
// positions see nothing, the next inside positions see elements of the image starting at pixel, and
// the rest see nothing.
type piece struct {
	image, row, column, n int
	before, inside, pixel int
}

// piece returns the first piece of n positions that start at position from of all images.
func (s *sight) piece(from, n int) piece {
	places := s.places()
	image, place := from/places, from%places
	row, column := place/s.out[1], place%s.out[1]
	return piece{image: image, row: row, column: column, n: min(n, s.out[1]-column)}
}

// pieces appends the pieces of n positions, and returns the number of pieces.
func (s *sight) pieces(to []piece, from, n int) int {
	for n > 0 {
		p := s.piece(from, n)
		to = append(to, p)
		from, n = from+p.n, n-p.n
	}
	return len(to)
}

// see sets what a tap at an offset of down and right sees.
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
	// Avoid divisions: they take as long as copying a few elements.
	if step == 1 {
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

// tap returns the offset of a tap from the position's own pixel, including the padding.
func (s *sight) tap(i int) (down, right int) {
	return s.start[0] + i/s.taps[1]*s.apart[0], s.start[1] + i%s.taps[1]*s.apart[1]
}

// placesPanel fills a panel with positions as columns: dst[i*width + j] is element k+i of what
// position from+j of all images sees, for i below depth and j below n. Images are stride elements
// apart. After the last element of a position comes a 1.
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
			clear(to) // clearing all of it is as fast as clearing a few columns
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

// strip copies n elements of each of rows channels; the elements are step apart.
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

// rowsPanel fills a panel with positions as rows: dst[i*width + j] is element item+j of what
// position from+i sees, for i below depth and j below items.
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
