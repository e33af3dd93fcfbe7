package weights

import "io"

// Gather reads the elements of a view in row-major order: of so many bytes each, with the shape
// and the strides, in elements, of a view that begins at the first one of data and ends within it.
func Gather(data []byte, size int, shape, strides []int) io.Reader {
	g := &gathered{data: data, size: size, shape: shape, strides: strides, at: make([]int, len(shape)), left: 1}
	for _, n := range shape {
		g.left *= n
	}
	return g
}

type gathered struct {
	data           []byte
	size           int
	shape, strides []int
	at             []int // the next element's indices
	place          int   // and its place in data, in elements
	left           int   // elements
}

// Read reads whole elements: its readers ask for at least one.
func (g *gathered) Read(p []byte) (int, error) {
	if g.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p)/g.size, g.left)
	for rest := n; rest > 0; {
		run, stride := 1, 0 // elements of the last dimension
		if d := len(g.shape) - 1; d >= 0 {
			run, stride = min(rest, g.shape[d]-g.at[d]), g.strides[d]*g.size
		}
		from := g.place * g.size
		for range run {
			copy(p[:g.size], g.data[from:])
			p, from = p[g.size:], from+stride
		}
		g.move(run)
		rest -= run
	}
	g.left -= n
	return n * g.size, nil
}

// move moves so many elements on, not beyond the end of the last dimension.
func (g *gathered) move(n int) {
	for d := len(g.shape) - 1; d >= 0; d-- {
		g.place += n * g.strides[d]
		if g.at[d] += n; g.at[d] < g.shape[d] {
			return
		}
		g.place -= g.shape[d] * g.strides[d]
		g.at[d], n = 0, 1
	}
}
