// Package plan holds the plans and small parameters that operations need beside their operands. A
// backend reads them from a call:
//
//	b := call.Plan.(*plan.Broadcast) // of an addition of two shapes
//
// A runtime caches plans, so that they must not be changed. The table in ../families.go lists the
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

// Random determines random numbers: word i is word i%4 of Philox4x32 with ten rounds, of the
// counter (i/4, Stream) and the key Seed, their low halves first. An operand with a seed takes the
// place of Seed.
//
// A fraction is a number in [0, 1): word i over 2^32 in float32, and in float64 the upper 53 of the
// 64 bits of words 2i and 2i+1, the low one first, over 2^53.
type Random struct{ Seed, Stream uint64 }

// Drop is the parameters of dropout: an element with a random word below Below becomes 0, and the
// others are multiplied by Scale.
type Drop struct {
	Random
	Below uint64
	Scale float64
}

// Noise is the parameters of random numbers. Uniform ones are From plus the fraction times Scale,
// or From if that is not below Limit. Normal ones are From plus Scale times the cosine, and for odd
// elements the sine, of the fraction of 2i+1 as a part of a turn, times sqrt(-2 log(1-f)) for the
// fraction f of 2i, for elements 2i and 2i+1. All is computed in float64 and rounded once.
type Noise struct {
	Random
	From, Scale, Limit float64
}

// Categorical is the parameters of draws from rows of Cols logits. A logit's weight is the whole
// number nearest to exp((logit-greatest)/Temperature) times Unit, and Unit for the greatest. It is
// 0 for logits below the Kept-th greatest and, of the others, for those that are not among the
// greatest that together have TopP of the weight; equal logits count together. Row i draws the
// first element at which the sum of the weights exceeds their total times number i over 2^64, or
// exceeds 0 if Temperature is 0; it draws -1 if a logit is NaN or all are -Inf. Number i has the
// words 2i and 2i+1, the low one first.
type Categorical struct {
	Random
	Cols, Kept        int
	TopP, Temperature float64
	Unit              float64
}

// Pad places a row of Length elements in a longer row of Row elements, from Start on.
type Pad struct{ Row, Start, Length int }

// Triangle is the part of matrices whose column minus row is at most Diagonal or, with Upper, at
// least Diagonal.
type Triangle struct {
	Rows, Cols, Diagonal int
	Upper                bool
}

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

// Order is the order of the elements of rows: its first Keep elements, the smallest, or the
// greatest if Descending. NaN is the greatest number, and equal elements stay in their order.
type Order struct {
	Rows
	Keep       int
	Descending bool
}

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

// Channels are the channels of an array (n, Channels, Inner), each of which has a parameter of its
// own. With one parameter for all, the array is one channel.
type Channels struct{ Channels, Inner int }
