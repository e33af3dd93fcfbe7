package kernel

import "github.com/cistern-ml/cistern/tensor/internal/gemm"

// The gradient of the weights needs panels with the channels of a position adjacent, but in an
// image they are far apart. If the channels fill panels, each row of an image is transposed once,
// and the panels of all taps are made from it.

// turned caches transposed rows of images, with the channels of a panel adjacent. A new row
// replaces an older one.
type turned[T Float] struct {
	rows    []T
	each    int             // elements
	channel int             // the first channel
	held    [mostTurned]int // the row in each slot, or -1
}

const (
	mostTurned     = 16
	fewestTurned   = 8 // with fewer, rows would be transposed for every tap
	turnedElements = 32 << 10
)

// turnedOf returns the capacity in rows, or 0 if transposing does not pay.
func turnedOf[T Float](s *sight, kernel gemm.Kernel[T]) int {
	if n := turnedElements / max(1, s.in[1]*kernel.Columns()); s.channels%kernel.Columns() == 0 && s.step[1] == 1 && s.taps != [2]int{1, 1} && n >= fewestTurned {
		return min(n, mostTurned)
	}
	return 0
}

// begin drops the rows, for other channels.
func (t *turned[T]) begin(channel int) {
	t.channel = channel
	for i := range t.held {
		t.held[i] = -1
	}
}

// row returns row h of an image, for the channels that begin with x. index is the row's number
// among the rows of all images.
func (t *turned[T]) row(kernel gemm.Kernel[T], s *sight, x []T, h, index int) []T {
	at := index % (len(t.rows) / t.each)
	row := t.rows[at*t.each:][:t.each]
	if t.held[at] != index {
		gemm.Panel(kernel.Level(), row, kernel.Columns(), x[h*s.in[1]:], s.pixels(), 1, s.in[1], kernel.Columns())
		t.held[at] = index
	}
	return row
}

// panel is rowsPanel for one tap and the channels that begin with x.
func (t *turned[T]) panel(kernel gemm.Kernel[T], s *sight, dst, x []T, stride, from, depth, tap int) {
	width := kernel.Columns()
	down, right := s.tap(tap)
	for at := 0; at < depth; {
		run := s.piece(from+at, depth-at)
		run.see(s, down, right)
		to := dst[at*width:][:run.n*width]
		clear(to[:run.before*width])
		if run.inside > 0 {
			h, column := run.pixel/s.in[1], run.pixel%s.in[1]
			row := t.row(kernel, s, x[run.image*stride:], h, run.image*s.in[0]+h)
			copy(to[run.before*width:], row[column*width:][:run.inside*width])
		}
		clear(to[(run.before+run.inside)*width:])
		at += run.n
	}
}
