package kernel

import (
	"math"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// randomBlock is the number of random words that are generated at a time.
const randomBlock = 1024

// randomWords holds the words of a block.
type randomWords [randomBlock]uint32

// make generates the words of block b.
func (w *randomWords) make(b uint64, r plan.Random) {
	simd.Words(w[:], b*(randomBlock/4), r.Stream, r.Seed)
}

// number returns the 64-bit number i of the block.
func (w *randomWords) number(i int) uint64 { return uint64(w[2*i+1])<<32 | uint64(w[2*i]) }

// eachBlock calls f for each block of random words, with the range of elements that use it. Each
// element uses that many words.
func eachBlock(elements, words int, r plan.Random, f func(w *randomWords, from, to int)) {
	per := randomBlock / words
	split((elements+per-1)/per, grainVectorMath/randomBlock, func(lo, hi int) {
		var w randomWords
		for b := lo; b < hi; b++ {
			w.make(uint64(b), r)
			f(&w, b*per, min((b+1)*per, elements))
		}
	})
}

// wordsOf returns the number of words of a fraction of type T, and fractionOf fraction i; see
// plan.Random.
func wordsOf[T Float]() int {
	var v T
	return int(unsafe.Sizeof(v)) / 4
}

func fractionOf[T Float](w *randomWords, i int) float64 {
	if wordsOf[T]() == 1 {
		return float64(w[i]) * 0x1p-32
	}
	return float64(w.number(i)>>11) * 0x1p-53
}

// Uniform sets dst to uniform numbers.
func Uniform[T Float](dst []T, n plan.Noise) {
	eachBlock(len(dst), wordsOf[T](), n.Random, func(w *randomWords, from, to int) {
		for i := range dst[from:to] {
			v := n.From + float64(n.Scale*fractionOf[T](w, i))
			if !(v < n.Limit) {
				v = n.From
			}
			dst[from+i] = T(v)
		}
	})
}

// Normal sets dst to normal numbers.
func Normal[T Float](dst []T, n plan.Noise) {
	eachBlock(len(dst), wordsOf[T](), n.Random, func(w *randomWords, from, to int) {
		out := dst[from:to]
		for i := 0; i < len(out); i += 2 {
			radius := math.Sqrt(-2 * math.Log(1-fractionOf[T](w, i)))
			sin, cos := sincosOfTurn(fractionOf[T](w, i+1))
			out[i] = T(n.From + float64(n.Scale*float64(radius*cos)))
			if i+1 < len(out) {
				out[i+1] = T(n.From + float64(n.Scale*float64(radius*sin)))
			}
		}
	})
}

// sincosOfTurn returns the sine and cosine of a fraction of a turn. The remainder after whole
// quarters is exact.
func sincosOfTurn(part float64) (sin, cos float64) {
	quarters := math.Round(4 * part)
	sin, cos = math.Sincos(2 * math.Pi * (part - quarters/4))
	switch int(quarters) {
	case 1:
		return cos, -sin
	case 2:
		return -sin, -cos
	case 3:
		return -cos, sin
	}
	return sin, cos
}

// Bernoulli sets dst to 1 where the random word over 2^32 is less than p, to NaN where p is NaN,
// and to 0 elsewhere.
func Bernoulli[T Float](dst, p []T, r plan.Random) {
	eachBlock(len(dst), 1, r, func(w *randomWords, from, to int) {
		for i, v := range p[from:to] {
			switch {
			case v != v:
				dst[from+i] = v
			case float64(w[i])*0x1p-32 < float64(v):
				dst[from+i] = 1
			default:
				dst[from+i] = 0
			}
		}
	})
}

// RandPerm sets dst to the numbers below its length, ordered by a random 64-bit number for each.
// The low bits of the random number are replaced by the number itself.
func RandPerm(dst []uint64, r plan.Random) {
	low := uint64(1)<<bits.Len(uint(len(dst)-1)) - 1
	eachBlock(len(dst), 2, r, func(w *randomWords, from, to int) {
		for i := range dst[from:to] {
			dst[from+i] = w.number(i)&^low | uint64(from+i)
		}
	})
	slices.Sort(dst)
	for i := range dst {
		dst[i] &= low
	}
}
