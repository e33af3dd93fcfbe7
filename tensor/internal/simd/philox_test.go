package simd

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestPhilox compares with the published results of known counters and keys.
func TestPhilox(t *testing.T) {
	words := func(c0, c1, c2, c3, k0, k1 uint32) [4]uint32 {
		w0, w1, w2, w3 := Philox(c0, c1, c2, c3, k0, k1)
		return [4]uint32{w0, w1, w2, w3}
	}
	const all = 0xffffffff
	assert.Equal(t, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}, words(0, 0, 0, 0, 0, 0))
	assert.Equal(t, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}, words(all, all, all, all, all, all))
	assert.Equal(t, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
		words(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0))
}
