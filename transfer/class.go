package transfer

import "math/bits"

// Sizes of pinned allocations: multiples of 64 bytes up to 512, and above that eight steps to each
// power of two: 576, 640, ..., 1024, 1152, 1280, ... So an allocation exceeds the request by less
// than 12.5 %, whereas powers of two waste up to 100 %. Multiples of 64 bytes keep two buffers out
// of one cache line.
const (
	grain    = 64
	linear   = 512 // below it, classes are multiples of grain
	maxBytes = 1 << 46
	classes  = linear/grain + 8*(46-9)
)

// classOf returns the class of a request of 1 to maxBytes bytes, and the size of its allocations.
func classOf(bytes int64) (class int, size int64) {
	if bytes <= linear {
		n := (bytes + grain - 1) / grain
		return int(n - 1), n * grain
	}
	k := bits.Len64(uint64(bytes-1)) - 1 // 1<<k < bytes <= 1<<(k+1)
	step := int64(1) << (k - 3)
	n := (bytes - 1<<k + step - 1) / step // 1 to 8
	return linear/grain + 8*(k-9) + int(n-1), 1<<k + n*step
}

// roundSize returns the size in bytes of the pinned allocation for a request of bytes bytes. It is
// 0 for 0 and for sizes that [Pool.Get] refuses.
func roundSize(bytes int64) int64 {
	if bytes <= 0 || bytes > maxBytes {
		return 0
	}
	_, size := classOf(bytes)
	return size
}
