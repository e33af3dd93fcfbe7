package kernel

import "github.com/cistern-ml/cistern/tensor/internal/gemm"

// A convolution is a matrix product whose one factor has an element for every use of an element of the image: it would be as
// many times larger as the window has taps. Panels of it, as the product's micro-kernel reads them, are made of the image when
// they are needed, and stay in a processor's cache until they are used up.

// zeros are as many as a row of a panel.
func zeros[T Float]() []T {
	var v T
	switch any(v).(type) {
	case float32:
		return any(zeros32[:]).([]T)
	default:
		return any(zeros64[:]).([]T)
	}
}

const mostColumns = 64

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

// piece is a run of places in one row of one image.
type piece struct{ image, row, column, n int }

// piece is the first of what remains, at place from of all images', of n.
func (s *sight) piece(from, n int) piece {
	places := s.places()
	image, place := from/places, from%places
	row, column := place/s.out[1], place%s.out[1]
	return piece{image, row, column, min(n, s.out[1]-column)}
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
	for at := 0; at < n; {
		run := s.piece(from+at, n-at)
		for i := 0; i < depth; {
			tap, channel := (k+i)/s.channels, (k+i)%s.channels
			rows := min(depth-i, s.channels-channel)
			before, inside, pixel := s.seen(tap, run.row, run.column, run.n)
			to := dst[i*width+at:]
			zeroRows(kernel, to, rows, before)
			if inside > 0 {
				strip(kernel, to[before:], x[run.image*stride+channel*pixels+pixel:], pixels, s.step[1], rows, inside)
			}
			if rest := run.n - before - inside; rest > 0 {
				zeroRows(kernel, to[before+inside:], rows, rest)
			}
			i += rows
		}
		at += run.n
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
			before, inside, pixel := s.seen(tap, run.row, run.column, run.n)
			to := dst[at*width+j:]
			zeroRows(kernel, to, before, n)
			if inside > 0 {
				gemm.Panel(kernel.Level(), to[before*width:], width, x[run.image*stride+channel*pixels+pixel:], pixels, s.step[1], inside, n)
			}
			if rest := run.n - before - inside; rest > 0 {
				zeroRows(kernel, to[(before+inside)*width:], rest, n)
			}
			j += n
		}
		at += run.n
	}
}
