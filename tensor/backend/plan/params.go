// Package plan holds what operations need beside their operands: plans, which a runtime remembers
// and nobody changes, and small parameters. The table in ../families.go says which operation has
// which. The package is experimental.
package plan

// Matrix is the size of a matrix.
type Matrix struct{ Rows, Cols int }

// Product is one product y[m,n] = op(A) op(B) over an inner dimension k, where op transposes the
// factors that TransA and TransB name. A is stored [m,k], or [k,m] if TransA; B is stored [k,n], or
// [n,k] if TransB.
type Product struct {
	M, N, K        int
	FanIn          int // of a masked gradient: the columns of the input of the layer before
	TransA, TransB bool
}

// Drop is how dropout chooses: an element with a random number below Below becomes 0, others are
// multiplied by Scale. The numbers are those of a seed and a stream.
type Drop struct {
	Seed, Stream, Below uint64
	Scale               float64
}

// Pad says where a row of Length elements lies in a longer one of Row elements: from Start on.
type Pad struct{ Row, Start, Length int }

// Take says how rows are taken from an array (Outer, Rows, Inner) by Count indices.
type Take struct{ Outer, Rows, Count, Inner int }

// TakeGrad is Take backwards: the row Skip gets nothing, and Mean divides by how often a row was
// taken.
type TakeGrad struct {
	Take
	Skip int
	Mean bool
}

// Sort says how indices are sorted: those of the row Skip, and those outside of [0, Rows), come
// last.
type Sort struct{ Rows, Skip int }

// Loss are the parameters of a loss. Each: the result is a number per element, not their sum.
// OfTarget: the gradient is that of the targets, not of the input.
type Loss struct{ Each, OfTarget bool }

// Cell is a step of a recurrent layer: of states of Size numbers. First says that no gradient of
// the cell state comes from a later step.
type Cell struct {
	Size  int
	First bool
}

// NormTotal says how many numbers the norm of each tensor has left.
type NormTotal struct{ Each int }
