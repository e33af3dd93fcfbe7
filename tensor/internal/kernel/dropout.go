package kernel

// Philox is Philox4x32 with ten rounds (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3): a function of
// a counter and a key whose results are random numbers. Nothing is carried from one to the next, so that any processor can
// compute any of them.
func Philox(counter [4]uint32, key [2]uint32) [4]uint32 {
	for range 10 {
		a, b := uint64(counter[0])*0xD2511F53, uint64(counter[2])*0xCD9E8D57
		counter = [4]uint32{uint32(b>>32) ^ counter[1] ^ key[0], uint32(b), uint32(a>>32) ^ counter[3] ^ key[1], uint32(a)}
		key[0] += 0x9E3779B9
		key[1] += 0xBB67AE85
	}
	return counter
}

// Random is where the random numbers of an operation come from: number i is word i%4 of Philox with the counter (i/4,
// Stream) and the key Seed, their low words first.
type Random struct{ Seed, Stream uint64 }

// Words are the numbers 4*i to 4*i+3.
func (r Random) Words(i uint64) [4]uint32 {
	return Philox([4]uint32{uint32(i), uint32(i >> 32), uint32(r.Stream), uint32(r.Stream >> 32)}, [2]uint32{uint32(r.Seed), uint32(r.Seed >> 32)})
}

// Dropout sets dst to x times scale where the random number of the element is at least below, and times 0 elsewhere. dst may
// be x.
func Dropout[T Float](dst, x []T, r Random, below uint64, scale float64) {
	split((len(x)+3)/4, grainMath/4, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			for j, word := range r.Words(uint64(i)) {
				at := 4*i + j
				if at == len(x) {
					return
				}
				factor := T(scale)
				if uint64(word) < below {
					factor = 0
				}
				dst[at] = x[at] * factor
			}
		}
	})
}
