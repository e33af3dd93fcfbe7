//go:build purego || !(amd64 || arm64)

package gemm

import "github.com/cistern-ml/cistern/tensor/internal/simd"

func tileAssembly(*machine, int, int, *byte, uintptr, *byte, uintptr, uintptr, *byte, uintptr, uintptr, uintptr) {
}

func panelAssembly[T Float](simd.Level, []T, int, []T, int, int, int, int) bool { return false }
