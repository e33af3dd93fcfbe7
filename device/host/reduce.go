package host

import (
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/bfloat16"
)

// reduceBlock is the number of elements that are reduced at a time, so that their sums stay in the
// cache.
const reduceBlock = 1024

// reduce writes the reduction of srcs, which have equal lengths, to each of dsts. Elements are
// added in the order of srcs, so the result does not depend on the rank that computes it. A dst may
// be one of srcs.
func reduce(t device.DataType, op device.ReduceOp, dsts, srcs [][]byte) {
	switch t {
	case device.Float32:
		reduceIn(op, dsts, srcs, same[float32], same[float32])
	case device.Float64:
		reduceIn(op, dsts, srcs, same[float64], same[float64])
	case device.BFloat16:
		reduceIn(op, dsts, srcs, bfloat16.Number.Float32, bfloat16.Round)
	case device.Int32:
		reduceIn(op, dsts, srcs, same[int32], same[int32])
	case device.Int64:
		reduceIn(op, dsts, srcs, same[int64], same[int64])
	}
}

func same[T any](x T) T { return x }

type number interface {
	float32 | float64 | int32 | int64
}

// reduceIn reduces elements of type E with sums of type A.
func reduceIn[E any, A number](op device.ReduceOp, dsts, srcs [][]byte, widen func(E) A, narrow func(A) E) {
	var sums [reduceBlock]A
	n := len(elements[E](srcs[0]))
	for lo := 0; lo < n; lo += reduceBlock {
		sum := sums[:min(reduceBlock, n-lo)]
		for r := range srcs {
			from := elements[E](srcs[r])[lo:][:len(sum)]
			switch {
			case r == 0:
				for i := range sum {
					sum[i] = widen(from[i])
				}
			case op == device.ReduceMax:
				for i := range sum {
					sum[i] = max(sum[i], widen(from[i]))
				}
			case op == device.ReduceMin:
				for i := range sum {
					sum[i] = min(sum[i], widen(from[i]))
				}
			default:
				for i := range sum {
					sum[i] += widen(from[i])
				}
			}
		}
		if op == device.ReduceAvg {
			for i := range sum {
				sum[i] /= A(len(srcs))
			}
		}
		for _, dst := range dsts {
			to := elements[E](dst)[lo:][:len(sum)]
			for i := range sum {
				to[i] = narrow(sum[i])
			}
		}
	}
}

// elements returns b as elements. The caller has checked its alignment.
func elements[E any](b []byte) []E {
	var e E
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(e)))
}
