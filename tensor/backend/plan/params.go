// Package plan holds what operations need beside their operands: plans and small parameters. A
// runtime caches plans, so that they must not be changed. The table in ../families.go lists the
// plan or the parameters of each operation. The package is experimental.
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

// Drop is the parameters of dropout: an element with a random number below Below becomes 0, and the
// others are multiplied by Scale. Seed and Stream determine the random numbers.
type Drop struct {
	Seed, Stream, Below uint64
	Scale               float64
}

// Pad places a row of Length elements in a longer row of Row elements, from Start on.
type Pad struct{ Row, Start, Length int }

// Take selects rows of an array (Outer, Rows, Inner) by Count indices.
type Take struct{ Outer, Rows, Count, Inner int }

// TakeGrad is the gradient of Take: the row Skip gets none, and Mean divides by the number of times
// that a row was taken.
type TakeGrad struct {
	Take
	Skip int
	Mean bool
}

// Sort sorts indices. Indices of the row Skip, and indices outside of [0, Rows), come last.
type Sort struct{ Rows, Skip int }

// Loss is the parameters of a loss. With Each the result is a number per element instead of the
// sum. With OfTarget the gradient is with respect to the targets instead of the input.
type Loss struct{ Each, OfTarget bool }

// Cell is a step of a recurrent layer whose states have Size numbers. With First no gradient of the
// cell state comes from a later step.
type Cell struct {
	Size  int
	First bool
}

// Recurrence is a pass over sequences, in reverse from the last step to the first. The cell states
// of all steps are kept, unless their operand has one alone: the last.
type Recurrence struct {
	Steps, Batch, Size int
	Reverse            bool
}

// NormTotal is the number of partial results that the norm of each tensor has written.
type NormTotal struct{ Each int }
