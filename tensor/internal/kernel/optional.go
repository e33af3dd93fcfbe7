package kernel

// orElse returns s[i], or none if s is nil.
func orElse[T Float](s []T, i int, none float64) float64 {
	if s == nil {
		return none
	}
	return float64(s[i])
}
