package tensor

import "github.com/cistern-ml/cistern/tensor/backend"

// opSpec is an operation on tensors of one floating-point dtype that has one result.
type opSpec struct {
	op    backend.Op
	name  string // in errors; "": the name of op
	infer inference
	to    destination
	dst   *Tensor // for into
	dtype Dtype   // of the result; 0: that of the operands
	mean  bool    // the sum is divided by the number of its terms
	c     [2]float64
}

// destination is the memory that an operation writes its result to.
type destination uint8

const (
	fresh   destination = iota // to new memory
	donated                    // to the memory of an operand that was donated, or new memory
	inPlace                    // to the first operand
	into                       // to opSpec.dst, or new memory if that is nil
)

// inference is the rule by which the result's shape and the call's plan follow from the operands.
type inference uint8

const (
	alike       inference = iota // all have one shape
	broadcast                    // two operands, after NumPy's rules
	onto                         // the others broadcast to the first one
	biased                       // (rows, …, n) and (n)
	repeated                     // the operand broadcasts to the shape dims
	summed                       // a sum to the shape dims, which broadcasts to the operand's
	reduced                      // a reduction over the axes dims
	reducedGrad                  // dy, x and perhaps the result of a reduction over the axes dims
	rows                         // the operand's shape, along an axis, by default the last
	chosen                       // one element of each vector along that axis
	ordered                      // some elements of each vector: dims are the axis and their number
)
