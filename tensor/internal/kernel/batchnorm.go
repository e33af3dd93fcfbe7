package kernel

import (
	"math"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// eachPart calls f for the parts of a channel.
func eachPart(p *plan.BatchNorm, c int, f func(lo, hi int)) {
	for i := range p.N {
		end := p.Channel(i, c) + p.Inner
		for lo := end - p.Inner; lo < end; lo += block {
			f(lo, min(lo+block, end))
		}
	}
}

// Running holds the running statistics of a batch norm, with an element per channel. All slices may
// be nil.
type Running[T Float] struct {
	Mean, Var []T
	Batches   []int64 // the number of batches so far
}

// shareOf returns the batch's weight in the new running statistics.
func shareOf(p *plan.BatchNorm, batches []int64) float64 {
	if math.IsNaN(p.Momentum) {
		return 1 / float64(batches[0]+1)
	}
	return p.Momentum
}

// NormalizeBatch sets y to the normalised channels of x, times w, plus b; w and b may be nil. It
// sets stats to the mean of each channel, followed by 1 over each channel's standard deviation. In
// training it updates the running statistics.
func NormalizeBatch[T Float](p *plan.BatchNorm, y []T, stats []float64, x, w, b []T, run Running[T]) {
	share := 0.0
	if p.Training && run.Mean != nil {
		share = shareOf(p, run.Batches)
	}
	split(p.C, max(1, rowGrain()/max(1, p.Count())), func(lo, hi int) {
		for c := lo; c < hi; c++ {
			mean, variance := 0.0, 0.0
			if p.Training {
				m := float64(p.Count())
				mean = sumOf(0, p.N, func(i int) float64 { return total(x[p.Channel(i, c):][:p.Inner]) }) / m
				squares := sumOf(0, p.N, func(i int) float64 { return deviations(x[p.Channel(i, c):][:p.Inner], mean) })
				variance = squares / m
				if run.Mean != nil {
					run.Mean[c] = T((1-share)*float64(run.Mean[c]) + share*mean)
					run.Var[c] = T((1-share)*float64(run.Var[c]) + share*(squares/(m-1)))
				}
			} else {
				mean, variance = float64(run.Mean[c]), float64(run.Var[c])
			}
			rstd := 1 / math.Sqrt(variance+p.Eps)
			stats[c], stats[p.C+c] = mean, rstd
			weight, shift := [1]T{T(orElse(w, c, 1))}, [1]T{T(orElse(b, c, 0))}
			eachPart(p, c, func(lo, hi int) { simd.Normalize(y[lo:hi], x[lo:hi], weight[:], shift[:], mean, rstd) })
		}
	})
	if p.Training && run.Batches != nil {
		run.Batches[0]++
	}
}

// NormalizeBatchGrad sets dx, dw and db, each of which may be nil, to the gradients. dx may be dy.
func NormalizeBatchGrad[T Float](p *plan.BatchNorm, dx, dw, db, dy, x, w []T, stats []float64) {
	ones := [1]T{1}
	split(p.C, max(1, rowGrain()/max(1, p.Count())), func(lo, hi int) {
		for c := lo; c < hi; c++ {
			mean, rstd := stats[c], stats[p.C+c]
			sum := sumOf(0, p.N, func(i int) float64 { return total(dy[p.Channel(i, c):][:p.Inner]) })
			dot := sumOf(0, p.N, func(i int) float64 {
				_, dot := dotDeviations(dy[p.Channel(i, c):][:p.Inner], x[p.Channel(i, c):][:p.Inner], mean)
				return dot
			})
			if dw != nil {
				dw[c] = T(dot * rstd)
			}
			if db != nil {
				db[c] = T(sum)
			}
			if dx == nil {
				continue
			}
			scale := rstd * orElse(w, c, 1)
			if !p.Training {
				eachPart(p, c, func(lo, hi int) {
					for i, v := range dy[lo:hi] {
						dx[lo+i] = T(scale * float64(v))
					}
				})
				continue
			}
			own, along := sum/float64(p.Count()), dot*rstd*rstd/float64(p.Count())
			eachPart(p, c, func(lo, hi int) { simd.NormalizeGrad(dx[lo:hi], dy[lo:hi], x[lo:hi], ones[:], mean, scale, own, along) })
		}
	})
}
