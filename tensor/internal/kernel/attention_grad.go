package kernel

import (
	"math"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// AttendGrad sets DQ, DK and DV, and DMask if it is not nil. Each element of the batch is computed
// by one goroutine.
func AttendGrad[T Float](p *plan.Attention, d *AttentionData[T]) {
	split(p.Count(), max(1, grainFlops/max(1, p.L*p.S*(p.E+p.V))), func(lo, hi int) {
		space := takeAttendSpace[T]()
		defer space.give()
		for z := lo; z < hi; z++ {
			attendGrad(p, d, space, z)
		}
	})
}

func attendGrad[T Float](p *plan.Attention, d *AttentionData[T], space *attendSpace[T], z int) {
	dq, dk, dv := d.DQ[p.Start(z, p.DQuery):], d.DK[p.Start(z, p.DKey):], d.DV[p.Start(z, p.DValue):]
	for i := range p.L {
		clear(dq[i*p.DQuery.Row:][:p.E])
	}
	for j := range p.S {
		clear(dk[j*p.DKey.Row:][:p.E])
		clear(dv[j*p.DValue.Row:][:p.V])
	}
	for key := 0; key < p.S; key += keyTile {
		for row := 0; row < p.L; row += queryTile {
			if m := min(queryTile, p.L-row); !p.Causal || key < row+m {
				attendGradTile(p, d, space, z, row, m, key, min(keyTile, p.S-key))
			}
		}
	}
}

// attendGradTile adds the contributions of m queries from row on and n keys from key on.
func attendGradTile[T Float](p *plan.Attention, d *AttentionData[T], space *attendSpace[T], z, row, m, key, n int) {
	q, k, v := d.Q[p.Start(z, p.Query)+row*p.Query.Row:], d.K[p.Start(z, p.Key)+key*p.Key.Row:], d.V[p.Start(z, p.Value)+key*p.Value.Row:]
	out, dout := d.Out[p.Start(z, p.Out)+row*p.Out.Row:], d.DOut[p.Start(z, p.Out)+row*p.Out.Row:]
	mask := p.Start(z, p.Mask)
	weights, slopes := space.weights[:], space.slopes[:]
	space.multiply(m, n, p.E, factor[T]{q, p.Query.Row, 1}, factor[T]{k, p.Key.Row, 1}, weights, keyTile, false)
	space.multiply(m, n, p.V, factor[T]{dout, p.Out.Row, 1}, factor[T]{v, p.Value.Row, 1}, slopes, keyTile, false)
	for i := range m {
		own := dot(dout[i*p.Out.Row:][:p.V], out[i*p.Out.Row:][:p.V])
		scores, exps := space.scores[:n], space.exponentials[:n]
		line, slope := weights[i*keyTile:][:n], slopes[i*keyTile:][:n]
		scoreRow(p, d, scores, line, mask, row+i, key)
		sums := d.Sums[2*(z*p.L+row+i):][:2]
		simd.ExpTo(exps, scores, sums[0])
		for j, w := range exps {
			s := 0.0
			if math.IsInf(scores[j], -1) {
				w = 0
			} else {
				w *= sums[1]
				s = w * (float64(slope[j]) - own)
			}
			if d.DMask != nil {
				d.DMask[(z*p.L+row+i)*p.S+key+j] = T(s)
			}
			line[j], slope[j] = T(w), T(s*p.Scale)
		}
	}
	space.multiply(n, p.V, m, factor[T]{weights, 1, keyTile}, factor[T]{dout, 1, p.Out.Row}, d.DV[p.Start(z, p.DValue)+key*p.DValue.Row:], p.DValue.Row, true)
	space.multiply(n, p.E, m, factor[T]{slopes, 1, keyTile}, factor[T]{q, 1, p.Query.Row}, d.DK[p.Start(z, p.DKey)+key*p.DKey.Row:], p.DKey.Row, true)
	space.multiply(m, p.E, n, factor[T]{slopes, keyTile, 1}, factor[T]{k, 1, p.Key.Row}, d.DQ[p.Start(z, p.DQuery)+row*p.DQuery.Row:], p.DQuery.Row, true)
}
