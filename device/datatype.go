package device

import "fmt"

// DataType is the type of a collective operation's elements (ncclDataType_t).
type DataType uint8

// The types of elements.
const (
	Float32 DataType = iota
	Float64
	// BFloat16 has the upper half of a float32's bits. Its sums are added up in float32 and rounded once, to the nearest, ties to even; NCCL may round more often.
	BFloat16
	Int32
	Int64
	dataTypes
)

// Valid reports whether t is one of the types above.
func (t DataType) Valid() bool { return t < dataTypes }

// Bytes is the size of an element. It is 0 for what is not Valid.
func (t DataType) Bytes() int64 {
	if !t.Valid() {
		return 0
	}
	return [...]int64{4, 8, 2, 4, 8}[t]
}

// String is the type's name: "float32".
func (t DataType) String() string {
	if !t.Valid() {
		return fmt.Sprintf("DataType(%d)", uint8(t))
	}
	return [...]string{"float32", "float64", "bfloat16", "int32", "int64"}[t]
}

// ReduceOp is how a collective operation makes one element of several (ncclRedOp_t).
type ReduceOp uint8

// The reductions. Of NaNs ReduceMax and ReduceMin may make a NaN or not, as the backend does.
const (
	// ReduceSum adds; whole numbers wrap around.
	ReduceSum ReduceOp = iota
	ReduceMax
	ReduceMin
	// ReduceAvg is the sum divided by the number of ranks; for whole numbers, toward zero (ncclAvg).
	ReduceAvg
	reduceOps
)

// Valid reports whether op is one of the reductions above.
func (op ReduceOp) Valid() bool { return op < reduceOps }

// String is the reduction's name: "sum".
func (op ReduceOp) String() string {
	if !op.Valid() {
		return fmt.Sprintf("ReduceOp(%d)", uint8(op))
	}
	return [...]string{"sum", "max", "min", "avg"}[op]
}
