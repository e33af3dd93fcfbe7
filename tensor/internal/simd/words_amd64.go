//go:build !purego

package simd

func assemblyWords(dst []uint32, counter, stream, seed uint64) bool {
	switch l := Active(); {
	case len(dst) == 0:
	case l == AVX512:
		philoxAVX512(&dst[0], len(dst)/4, counter, stream, seed)
	case l == AVX2:
		philoxAVX2(&dst[0], len(dst)/4, counter, stream, seed)
	default:
		return false
	}
	return true
}
