//go:build !unix

package gemm

// guarded returns memory for n elements; no pages guard it here.
func guarded[T Float](n int, _ bool) (s []T, free func()) { return make([]T, n), func() {} }
