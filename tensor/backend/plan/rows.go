package plan

// Rows are the vectors along one dimension of an array: Cols elements each, Inner elements apart.
// Inner is the product of the dimensions after it, 1 for the last dimension.
type Rows struct{ Cols, Inner int }

// Start returns the offset of the first element of row i.
func (r Rows) Start(i int) int { return i/r.Inner*(r.Cols*r.Inner) + i%r.Inner }

// Entropy is the parameters of a cross entropy of rows of logits, with one label each.
type Entropy struct {
	Rows
	Ignore    int64   // the label of rows that don't count
	Smoothing float64 // how much of the label is spread evenly over the classes
	Mean      bool    // over the weights of the labels that count
	Each      bool    // a loss for every row, in place of one
}
