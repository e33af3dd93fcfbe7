//go:build purego || !amd64

package gemm

import "github.com/cistern-ml/cistern/tensor/internal/simd"

func tileAssembly(*machine, int, int, *byte, uintptr, *byte, uintptr, uintptr, *byte, uintptr, uintptr, uintptr) {
}

func panelAssembly[T Float](simd.Level, []T, int, []T, int, int, int, int) bool { return false }

func finishAssembly[T Float](simd.Level, []T, int, int, int, []T, []T, bool) bool { return false }

func dotsAssembly(simd.Level, int, *byte, int, *byte, int, int, *byte, int, bool) {}

func addRowsAssembly(simd.Level, int, *byte, int, *byte, int, *byte, int, int) {}
