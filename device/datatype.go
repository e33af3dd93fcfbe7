package device

import "fmt"

// DataType is the type of a collective operation's elements (ncclDataType_t).
type DataType uint8

// The element types.
const (
	Float32 DataType = iota
	Float64
	// BFloat16 has the upper half of a float32's bits. Sums are accumulated in float32 and rounded
	// once, to the nearest, ties to even; NCCL may round more often.
	BFloat16
	Int32
	Int64
	dataTypes
)

// Valid reports whether t is one of the types above.
func (t DataType) Valid() bool { return t < dataTypes }

// Bytes returns the size of an element in bytes, or 0 if t is not Valid.
func (t DataType) Bytes() int64 {
	if !t.Valid() {
		return 0
	}
	return [...]int64{4, 8, 2, 4, 8}[t]
}

// String returns the type's name, such as "float32".
func (t DataType) String() string {
	if !t.Valid() {
		return fmt.Sprintf("DataType(%d)", uint8(t))
	}
	return [...]string{"float32", "float64", "bfloat16", "int32", "int64"}[t]
}

// ReduceOp is the operation that combines the ranks' elements (ncclRedOp_t).
type ReduceOp uint8

// The reductions. If an element is NaN, the result of ReduceMax and ReduceMin may be NaN or not,
// depending on the backend.
const (
	// ReduceSum adds; integers wrap around.
	ReduceSum ReduceOp = iota
	ReduceMax
	ReduceMin
	// ReduceAvg is the sum divided by the number of ranks; integers are rounded toward zero
	// (ncclAvg).
	ReduceAvg
	reduceOps
)

// Valid reports whether op is one of the reductions above.
func (op ReduceOp) Valid() bool { return op < reduceOps }

// String returns the reduction's name, such as "sum".
func (op ReduceOp) String() string {
	if !op.Valid() {
		return fmt.Sprintf("ReduceOp(%d)", uint8(op))
	}
	return [...]string{"sum", "max", "min", "avg"}[op]
}
