//go:build purego || !amd64

package gemm

import "github.com/cistern-ml/cistern/tensor/internal/simd"

func finishAssembly[T Float](simd.Level, []T, int, int, int, []T, []T, bool) bool { return false }

func dotsAssembly(simd.Level, int, *byte, int, *byte, int, int, *byte, int, bool) {}

func addRowsAssembly(simd.Level, int, *byte, int, *byte, int, *byte, int, int) {}
