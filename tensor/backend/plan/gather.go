package plan

// Fault is what a kernel found wrong in the data it was given. It lives in device memory, next to the data,
// so that finding it costs the host nothing until the host reads a result anyway. Only the first fault is
// kept.
type Fault struct {
	Code       int32 // 0: none
	Row        int32
	Got, Limit int32
}

// The codes of faults.
const (
	FaultLabel = 1 // a class label outside [0, Limit)
	FaultIndex = 2 // an index outside [0, Limit); Row is its place
)

// Gather says how elements of x are chosen along one dimension: column c of the index starts at Dst of its place in
// Columns, has Length elements IndexStride apart, and chooses from the Rows elements XStride apart that start at Src in x.
type Gather struct {
	Columns                            *Placement
	Length, IndexStride, Rows, XStride int
}

// Place is where element i of all is in the index, and the start of its column in x. Neighbours are neighbours in the
// index.
func (g *Gather) Place(i int) (at, x int) {
	columns := g.Columns.Count()
	c, j := i%columns, i/columns
	if g.IndexStride == 1 {
		c, j = i/g.Length, i%g.Length
	}
	at, x = g.Columns.At(c)
	return at + j*g.IndexStride, x
}
