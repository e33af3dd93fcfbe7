package plan

// Fault is a wrong label or index that a kernel found. It lies in device memory, and the next read
// of a tensor returns it as an error. Only the first fault is kept.
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

// Gather is the plan of a choice of elements of x along one dimension. Column c of the index starts
// at Dst of Columns and has Length elements, IndexStride apart. It chooses from the Rows elements
// of x, XStride apart, that start at Src of Columns.
type Gather struct {
	Columns                            *Placement
	Length, IndexStride, Rows, XStride int
	Distinct                           bool // no column chooses an element twice
}

// Place returns the offset of element i in the index, and the offset in x of its column. Neighbours
// are neighbours in the index.
func (g *Gather) Place(i int) (at, x int) {
	columns := g.Columns.Count()
	c, j := i%columns, i/columns
	if g.IndexStride == 1 {
		c, j = i/g.Length, i%g.Length
	}
	at, x = g.Columns.At(c)
	return at + j*g.IndexStride, x
}
