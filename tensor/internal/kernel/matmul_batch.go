package kernel

import "runtime"

// alone: there are products enough in the batch for each to be one goroutine's.
func (p MatMul) alone() bool {
	return p.M*p.N*p.K < grainFlops || p.Batch.Count() >= 4*runtime.GOMAXPROCS(0)
}

// MultiplyBatch sets c to the products of a batch. scratch has MatMulScratch elements.
func MultiplyBatch[T Float](p MatMul, c, a, b, scratch []T) {
	batch, alone := p.Batch, p.alone()
	p.Batch = nil
	each := func(lo, hi int) {
		for i := lo; i < hi; i++ {
			oa, ob := batch.At(i)
			one := productOf(p, c[i*p.M*p.N:][:p.M*p.N], a[oa:][:p.M*p.K], b[ob:][:p.K*p.N])
			if alone {
				one.RunAlone()
			} else {
				one.Run(scratch)
			}
		}
	}
	if alone {
		split(batch.Count(), max(1, grainFlops/max(1, p.M*p.N*p.K)), each)
	} else {
		each(0, batch.Count())
	}
}
