package weights

import "io"

// Gather reads the elements of a view in row-major order. size is the size of an element in bytes,
// and strides are in elements. The view begins at the first element of data and must end within
// data.
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
	at             []int // indices of the next element
	place          int   // its offset in data, in elements
	left           int   // number of elements left
}

// Read reads whole elements. p must hold at least one.
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

// move advances by n elements, not beyond the end of the last dimension.
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
