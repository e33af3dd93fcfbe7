//go:build purego || !amd64

package simd

var (
	unary32  [levels][unaries]UnaryFunc[float32]
	unary64  [levels][unaries]UnaryFunc[float64]
	binary32 [levels][binaries]BinaryFunc[float32]
	binary64 [levels][binaries]BinaryFunc[float64]
)
