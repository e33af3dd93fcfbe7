package kernel

import (
	"math"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// Attention is softmax(Q Kᵀ scale + mask) V, computed without the matrix of scores. A tile of
// queries meets one tile of keys after the other, and keeps the greatest score and the sum of
// exponentials so far. When a greater score comes, the sums so far are scaled down. Each query's
// greatest score and 1 over its sum are kept for the backward step, which recomputes every weight
// from them. They are kept separately, because the logarithm of the sum would be lost in rounding
// next to a score such as -1e30 from a mask. The gradient of a score is weight (dOut·v - dOut·out),
// and a query's dOut·out is the same for all keys.

// AttentionData holds the arrays of an attention. The arrays of the gradient are nil in the forward
// step. The mask is of T or of uint8.
type AttentionData[T Float] struct {
	Q, K, V, Out []T
	// Sums holds for each query the greatest score, and 1 over the sum of exponentials relative to
	// it.
	Sums                    []float64
	FloatMask               []T
	BoolMask                []uint8
	DOut, DQ, DK, DV, DMask []T
}

// Attend sets Out and Sums. The result of a query that sees no key is 0.
func Attend[T Float](p *plan.Attention, d *AttentionData[T]) {
	tiles := (p.L + queryTile - 1) / queryTile
	work := max(1, queryTile*p.S*(p.E+p.V))
	split(p.Count()*tiles, max(1, grainFlops/work), func(lo, hi int) {
		space := takeAttendSpace[T]()
		defer space.give()
		for t := lo; t < hi; t++ {
			attendTile(p, d, space, t/tiles, t%tiles*queryTile)
		}
	})
}

// attendTile computes the queries of element z of the batch from row on.
func attendTile[T Float](p *plan.Attention, d *AttentionData[T], space *attendSpace[T], z, row int) {
	var top, sum [queryTile]float64
	m := min(queryTile, p.L-row)
	q, k, v, mask := d.Q[p.Start(z, p.Query)+row*p.Query.Row:], d.K[p.Start(z, p.Key):], d.V[p.Start(z, p.Value):], p.Start(z, p.Mask)
	out := d.Out[p.Start(z, p.Out)+row*p.Out.Row:]
	for i := range m {
		top[i] = math.Inf(-1)
		clear(out[i*p.Out.Row:][:p.V])
	}
	for key := 0; key < p.S && !(p.Causal && key >= row+m); key += keyTile {
		n := min(keyTile, p.S-key)
		space.multiply(m, n, p.E, factor[T]{q, p.Query.Row, 1}, factor[T]{k[key*p.Key.Row:], p.Key.Row, 1}, space.weights[:], keyTile, false)
		for i := range m {
			line, greatest := space.weights[i*keyTile:][:n], top[i]
			scores, weights := space.scores[:n], space.exponentials[:n]
			scoreRow(p, d, scores, line, mask, row+i, key)
			for _, s := range scores {
				if s > greatest {
					greatest = s
				}
			}
			base := seen(greatest)
			if shrink := math.Exp(top[i] - base); shrink != 1 {
				sum[i] *= shrink
				scaleRow(out[i*p.Out.Row:][:p.V], shrink)
			}
			top[i] = greatest
			sum[i] += simd.ExpTo(weights, scores, base)
			for j, w := range weights {
				line[j] = T(w)
			}
		}
		space.multiply(m, p.V, n, factor[T]{space.weights[:], keyTile, 1}, factor[T]{v[key*p.Value.Row:], 1, p.Value.Row}, out, p.Out.Row, true)
	}
	for i := range m {
		copy(d.Sums[2*(z*p.L+row+i):], []float64{seen(top[i]), 1 / sum[i]})
		if sum[i] != 0 {
			scaleRow(out[i*p.Out.Row:][:p.V], 1/sum[i])
		}
	}
}

// seen returns the greatest score, or 0 if no key was seen, so that the exponential of -Inf minus
// it is 0.
func seen(greatest float64) float64 {
	if math.IsInf(greatest, -1) {
		return 0
	}
	return greatest
}

func scaleRow[T Float](row []T, by float64) {
	for i, v := range row {
		row[i] = T(float64(v) * by)
	}
}
