package kernel

import "testing"

// rounds is how often a test repeats something: as often as it says, and with -short so often that
// every branch is met.
func rounds(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}
