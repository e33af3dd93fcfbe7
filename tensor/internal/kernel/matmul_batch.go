package kernel

import "runtime"

// Joined is the plan with its batch as part of the rows, if every matrix of A is multiplied by one B: a single product.
func (p MatMul) Joined() MatMul {
	switch b := p.Batch; {
	case len(b.Dims) == 0:
		p.Batch = nil
	case len(b.Dims) == 1 && !p.TransA && b.Src[0] == 0 && b.Dst[0] == p.M*p.K:
		p.M *= b.Dims[0]
		p.Batch = nil
	}
	return p
}

// single is the plan of one product of the batch.
func (p MatMul) single() MatMul {
	p.Batch = nil
	return p
}

// Parts is the number of goroutines that products of a batch are worth, each of which needs scratch memory for one.
func (p MatMul) Parts() int {
	if p.Batch == nil {
		return 1
	}
	n := p.Batch.Count()
	perProduct := max(1, p.M*p.N*p.K)
	return max(1, min(runtime.GOMAXPROCS(0), n, n/max(1, grainFlops/perProduct)))
}

// MultiplyBatch sets c to the products of a batch, over so many goroutines. scratch has parts times p.Scratch() elements.
func MultiplyBatch[T Float](p MatMul, parts int, c, a, b, scratch []T) {
	one, batch := p.single(), p.Batch
	n, size := batch.Count(), one.Scratch()
	split(parts, 1, func(lo, hi int) {
		for part := lo; part < hi; part++ {
			for i := part * n / parts; i < (part+1)*n/parts; i++ {
				oa, ob := batch.At(i)
				Multiply(one, c[i*p.M*p.N:][:p.M*p.N], a[oa:][:p.M*p.K], b[ob:][:p.K*p.N], scratch[part*size:][:size])
			}
		}
	})
}
