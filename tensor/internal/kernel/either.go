package kernel

// either returns a or b, whichever is a V. It selects between variables for float32 and float64 by
// a type parameter.
func either[V any](a, b any) V {
	if v, ok := a.(V); ok {
		return v
	}
	return b.(V)
}
