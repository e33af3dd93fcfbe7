//go:build purego || !amd64

package simd

// Adam is a step of Adam; it is false, since there is no assembly.
func Adam[T Float](p, g, m, v, top []T, s *AdamScalars[T]) bool { return false }

// SGD is a step of gradient descent; it is false, since there is no assembly.
func SGD[T Float](how Momentum, p, g, buf []T, s *SGDScalars[T]) bool { return false }
