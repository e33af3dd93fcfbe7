package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

var tileProduct = named("matmul")

func products(t *entries) {
	for _, op := range append(backend.Linear.All(), backend.MatMul, backend.MatMulSums, backend.MatMulMasked) {
		t[op] = entry{kernel: tileProduct, run: matmul, can: canMultiply}
	}
}

// canMultiply reports whether c can run here. The library computes in bfloat16 only if it also adds
// a bias.
func canMultiply(b *Backend, c *backend.Call) bool {
	if c.Mixed() || c.Narrow && b.blas != nil && !(b.fused && b.blas.MatMulBFloat16()) {
		return false
	}
	if c.Op == backend.MatMulSums || c.Op == backend.MatMulMasked {
		w, _ := b.own(productOf(c))
		return w != Nowhere
	}
	return tileProduct.has(c.Dtype)
}

func matmul(ctx context.Context, l *launcher, _ name) error {
	p := productOf(l.c)
	w, _ := l.b.choose(p)
	switch w {
	case Nowhere:
		return l.c.Unsupported()
	case OwnNarrow, OwnWide:
		return l.ownProduct(ctx, w, p)
	case Multiply:
		if p.K > 0 {
			return l.multiply(p)
		}
	case LibraryBias:
		if err := l.byLibrary(ctx, p, l.arg(3)); err != nil || p.op == backend.MatMulAddBias {
			return err
		}
		// The library rounds twice: the product, and the product with its bias.
		return l.follow(ctx, backend.ReLU)
	}
	var err error
	if p.K == 0 {
		err = l.fill(0)
	} else {
		err = l.byLibrary(ctx, p, nil)
	}
	if err != nil || p.op == backend.MatMul {
		return err
	}
	if p.op == backend.MatMulAddBiasReLU {
		return l.follow(ctx, backend.AddBiasReLU)
	}
	return l.follow(ctx, backend.AddBias)
}

// follow queues an operation on the result, in place.
func (l *launcher) follow(ctx context.Context, op backend.Op) error {
	c := l.b.env.NewCall(op, l.c.Dtype)
	c.Add(*l.arg(0))
	c.Add(*l.arg(0))
	if op.Family() == backend.Bias {
		c.Add(*l.arg(3))
	}
	defer c.Free()
	return l.b.run(ctx, c)
}

// multiply computes the product without a library.
func (l *launcher) multiply(p product) error {
	as, bs, batch := [2]int{p.K, 1}, [2]int{p.N, 1}, &plan.Placement{}
	if p.TransA {
		as = [2]int{1, p.M}
	}
	if p.TransB {
		bs = [2]int{1, p.K}
	}
	if p.batch {
		batch = l.c.Plan.(*plan.Placement)
	}
	n := batch.Count()
	l.Blocks(tiles(p.M)*tiles(p.N), tileSide, 8).Grid[1] = uint32(min(n, maxGridY))
	l.operands(0, 1, 2).Word(p.M, p.N, p.K).Word(as[:]...).Word(bs[:]...).Word(n)
	l.optional(p.op != backend.MatMul, 3).Flag(p.op == backend.MatMulAddBiasReLU)
	return l.dims("a batch", batch.Dims, batch.Dst, batch.Src).run(tileProduct)
}

// tiling describes how the kernels of a file cut a product: into tiles of side by side results,
// with stage steps of the inner dimension at a time.
type tiling struct {
	nn, nt, tn  name
	side, stage int
}

var tilings = [...]tiling{
	OwnNarrow: {named("product_nn"), named("product_nt"), named("product_tn"), 32, 64},
	OwnWide:   {named("product_wide_nn"), named("product_wide_nt"), named("product_wide_tn"), 64, 32},
}

func (t *tiling) tiles(m, n int) int { return (m + t.side - 1) / t.side * ((n + t.side - 1) / t.side) }
func (t *tiling) steps(k int) int    { return (k + t.stage - 1) / t.stage }

// partBytes returns the size of what a part of the inner dimension writes for each tile: its
// results, and sums of rows in float64.
func (t *tiling) partBytes() int { return (t.side*t.side + 2*t.side) * 4 }

// ownProduct computes a product and the operation after it in one launch.
func (l *launcher) ownProduct(ctx context.Context, w Way, p product) error {
	t := &tilings[w]
	all := t.tiles(p.M, p.N)
	n := productParts(w, all, t.steps(p.K))
	if n == 1 {
		return l.ownParts(t, p, 1, device.Range{}, device.Range{})
	}
	parts, err := l.b.takeParts(ctx)
	if err != nil {
		return err
	}
	return l.inScratch(ctx, all*n*t.partBytes(), func(partial device.Range) error { return l.ownParts(t, p, n, partial, parts.Range(0, ticketBytes)) })
}

func (l *launcher) ownParts(t *tiling, p product, n int, partial, tickets device.Range) error {
	lda, ldb, k := p.K, p.N, t.nn
	switch {
	case p.TransA:
		lda, k = p.M, t.tn
	case p.TransB:
		ldb, k = p.K, t.nt
	}
	a, b := l.arg(1), l.arg(2)
	l.Blocks(t.tiles(p.M, p.N)*n, 256, 1).operands(0, 1, 2).optional(p.op.Family() == backend.Linear, 3)
	l.optional(p.op == backend.MatMulSums, 3).optional(p.op == backend.MatMulMasked, 3).Word(p.M, p.N, p.K)
	l.Flag(lda%4 == 0 && a.Ptr%16 == 0, ldb%4 == 0 && b.Ptr%16 == 0, p.op == backend.MatMulAddBiasReLU)
	return l.Word(n).Memory(partial, backend.Write).Memory(tickets, backend.Update).run(k)
}
