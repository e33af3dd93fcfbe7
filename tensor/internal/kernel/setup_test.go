package kernel

import "testing"

// rounds returns how often a test repeats something: full times, or with -short just often enough
// that every branch runs.
func rounds(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}
