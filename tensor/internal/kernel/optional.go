package kernel

// orOne is s[i], or 1 if s is nil: what is not there multiplies nothing.
func orOne[T Float](s []T, i int) float64 {
	if s == nil {
		return 1
	}
	return float64(s[i])
}

// orZero is s[i], or 0 if s is nil: what is not there adds nothing.
func orZero[T Float](s []T, i int) float64 {
	if s == nil {
		return 0
	}
	return float64(s[i])
}
