//go:build purego || !amd64

package simd

var (
	unary32  [levels][unaries]UnaryFunc[float32]
	unary64  [levels][unaries]UnaryFunc[float64]
	binary32 [levels][binaries]BinaryFunc[float32]
	binary64 [levels][binaries]BinaryFunc[float64]

	gradient32 [levels][gradients]GradientFunc[float32]
	gradient64 [levels][gradients]GradientFunc[float64]
)
