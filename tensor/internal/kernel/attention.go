package kernel

import (
	"math"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// Attention is softmax(Q Kᵀ scale + mask) V without the matrix of scores: a tile of queries meets one
// tile of keys after the other, and keeps the greatest score and the sum of exponentials so far; what
// was added up before a greater score came is scaled down. Each query's greatest score and 1 over its
// sum are kept, from which the backward step finds every weight again: apart, because the logarithm of
// the sum vanishes beside the score of a key that a mask of -1e30 hides. The gradient of a score is
// weight (dOut·v - dOut·out), and a query's dOut·out is the same for all keys.

// AttentionData are the arrays of an attention; those of the gradient are nil otherwise. The mask is T, or uint8.
type AttentionData[T Float] struct {
	Q, K, V, Out            []T
	Sums                    []float64 // of each query the greatest score, and 1 over the sum of exponentials beside it
	FloatMask               []T
	BoolMask                []uint8
	DOut, DQ, DK, DV, DMask []T
}

// Attend sets Out and Sums. A query that sees no key gets 0.
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

// attendTile is for the queries of element z from row on.
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

// seen is the greatest score, and any number if no key was seen: exponentials of -Inf are 0 beside it.
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
