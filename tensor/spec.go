package tensor

import "github.com/cistern-ml/cistern/tensor/backend"

// opSpec is an operation on tensors of one floating-point dtype that has one result.
type opSpec struct {
	op    backend.Op
	name  string // in errors; "": that of op
	infer inference
	to    destination
	dst   *Tensor // of into
	dtype Dtype   // of the result; 0: that of the operands
	mean  bool    // a sum is divided by the number of its terms
	c     [2]float64
}

// destination says where the result of an operation goes.
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
	summed                       // over the axes by which the operand was broadcast from the shape dims
	reduced                      // over the axes dims
	reducedGrad                  // dy, x and perhaps the result, of a reduction of x over the axes dims
	rows                         // the result is like vectors along the axis, the last unless it is given
	chosen                       // an element of each of these vectors
	ordered                      // so many elements of each vector: dims are the axis and how many
)
