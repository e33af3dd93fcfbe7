package simd

import "math/bits"

// Words sets dst to random numbers: the words of Philox4x32 with ten rounds (Salmon, Moraes, Dror,
// Shaw: Parallel Random Numbers: As Easy as 1, 2, 3). The counters are (counter, stream), (counter
// + 1, stream), … with four words each. The key is seed. The low words come first. The length of
// dst must be a multiple of 32.
func Words(dst []uint32, counter, stream, seed uint64) {
	if assemblyWords(dst, counter, stream, seed) {
		return
	}
	for ; len(dst) >= 4; dst = dst[4:] {
		dst[0], dst[1], dst[2], dst[3] = Philox(uint32(counter), uint32(counter>>32), uint32(stream), uint32(stream>>32), uint32(seed), uint32(seed>>32))
		counter++
	}
}

// Philox returns the four words for a counter of four words and a key of two.
func Philox(c0, c1, c2, c3, k0, k1 uint32) (w0, w1, w2, w3 uint32) {
	for range 10 {
		a, low := bits.Mul32(c0, 0xD2511F53)
		b, more := bits.Mul32(c2, 0xCD9E8D57)
		c0, c1, c2, c3 = b^c1^k0, more, a^c3^k1, low
		k0 += 0x9E3779B9
		k1 += 0xBB67AE85
	}
	return c0, c1, c2, c3
}
