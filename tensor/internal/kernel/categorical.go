package kernel

import (
	"math"
	"math/bits"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// Categorical sets dst to an index drawn from each row of x.
func Categorical[T Float](dst []int32, x []T, c plan.Categorical) {
	split(len(dst), max(1, grainMath/c.Cols), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			// Number i is one half of the words of a counter.
			var w [4]uint32
			w[0], w[1], w[2], w[3] = simd.Philox(uint32(i/2), uint32(uint64(i/2)>>32), uint32(c.Stream), uint32(c.Stream>>32), uint32(c.Seed), uint32(c.Seed>>32))
			at := 2 * (i % 2)
			dst[i] = drawRow(x[i*c.Cols:][:c.Cols], c, uint64(w[at+1])<<32|uint64(w[at]))
		}
	})
}

func drawRow[T Float](row []T, c plan.Categorical, number uint64) int32 {
	top := T(math.Inf(-1))
	for _, v := range row {
		if v != v {
			return -1
		}
		top = max(top, v)
	}
	if math.IsInf(float64(top), -1) {
		return -1
	}
	weigh := func(v T) uint64 {
		if v == top {
			return uint64(c.Unit)
		}
		return uint64(float64(math.Exp((float64(v)-float64(top))/c.Temperature)*c.Unit) + 0.5)
	}
	least := uint64(0) // the smallest key that can be drawn
	if c.Kept < c.Cols {
		least = threshold(row, func(T) uint64 { return 1 }, uint64(c.Kept))
	}
	among := func(v T) uint64 {
		if key(v) < least {
			return 0
		}
		return weigh(v)
	}
	if c.TopP < 1 {
		all := uint64(0)
		for _, v := range row {
			all += among(v)
		}
		least = threshold(row, among, max(1, min(all, uint64(math.Ceil(c.TopP*float64(all))))))
	}
	total := uint64(0)
	for _, v := range row {
		total += among(v)
	}
	target, _ := bits.Mul64(number, total)
	if c.Temperature == 0 {
		target = 0
	}
	for j, v := range row {
		w := among(v)
		if target < w {
			return int32(j)
		}
		target -= w
	}
	return -1 // not reached, because the target is less than the total
}

// threshold returns the greatest key for which the elements with at least this key weigh at least
// need together. It is found bit by bit. above is the weight of the elements whose bits so far are
// greater.
func threshold[T Float](row []T, weigh func(T) uint64, need uint64) (least uint64) {
	above := uint64(0)
	for bit := keyBits[T]() - 1; bit >= 0; bit-- {
		with, sum := least>>bit|1, uint64(0)
		for _, v := range row {
			if key(v)>>bit == with {
				sum += weigh(v)
			}
		}
		if above+sum >= need {
			least |= 1 << bit
		} else {
			above += sum
		}
	}
	return least
}

// key orders like the numbers. Zeros of both signs have the same key.
func key[T Float](v T) uint64 {
	if wordsOf[T]() == 1 {
		b := math.Float32bits(float32(v) + 0)
		return uint64(b ^ uint32(int32(b)>>31)&0x7fffffff ^ 0x80000000)
	}
	b := math.Float64bits(float64(v) + 0)
	return b ^ uint64(int64(b)>>63)&0x7fffffffffffffff ^ 1<<63
}

func keyBits[T Float]() int { return 32 * wordsOf[T]() }
