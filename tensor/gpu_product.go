package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// The kernels of product.cu have tiles of productSide by productSide results, take productStage steps of the inner dimension at a time, and leave
// parts of so many bytes for each tile.
const (
	productSide  = 32
	productStage = 64
	productRoom  = (productSide*productSide + 2*productSide) * 4
)

// small is products for which the kernels of product.cu are faster than the library's, as measured on an H200 (docs/decisions/planned-products.md): a
// library's tiles are too large to fill the GPU with them.
func (g *gpuKernels) small(p kernel.MatMul, dst *Tensor) bool {
	if dst.dtype != Float32 || p.Batch != nil || p.K == 0 || p.TransA && p.TransB || dst.ptr()%16 != 0 {
		return false
	}
	return !g.tf32 && ownProduct(p.M, p.N, p.K)
}

// ownProduct is a variable for tests, of all products by the one way and by the other.
var ownProduct = func(m, n, k int) bool {
	all := tiles(m) * tiles(n)
	return all <= 64 && all*productSteps(k) <= 256
}

func productSteps(k int) int { return (k + productStage - 1) / productStage }

// productParts is into how many parts the inner dimension is cut: two steps take less time than blocks that meet.
var productParts = func(tiles, steps int) int {
	if tiles > partTickets || steps < 3 {
		return 1
	}
	return max(1, min(steps, 8, enough/tiles))
}

// smallProduct is a product and what follows it in one launch.
func (g *gpuKernels) smallProduct(ctx context.Context, p kernel.MatMul, dst, a, b *Tensor, then epilogue) error {
	all := tiles(p.M) * tiles(p.N)
	n := productParts(all, productSteps(p.K))
	if n == 1 {
		return g.launchProduct(p, dst, a, b, then, 1, all, device.Range{}, memcache.Block{})
	}
	parts, err := g.takeParts(ctx, true)
	if err != nil {
		return fmt.Errorf("tensor: MatMul: %w", err)
	}
	bytes := all * n * productRoom
	return g.rt.withScratch(ctx, "MatMul", dst, bytes/4, func(scratch memcache.Block) error {
		return g.launchProduct(p, dst, a, b, then, n, all, scratch.Range(0, int64(bytes)), parts)
	})
}

func (g *gpuKernels) launchProduct(p kernel.MatMul, dst, a, b *Tensor, then epilogue, n, all int, partial device.Range, parts memcache.Block) error {
	lda, ldb, name := p.K, p.N, "product nn"
	switch {
	case p.TransA:
		lda, name = p.M, "product tn"
	case p.TransB:
		ldb, name = p.K, "product nt"
	}
	l := g.newLaunch("matmul", dst.dtype, 0)
	l.Grid[0] = blocks(all*n, 1)
	l.write(dst)
	l.read(a)
	l.read(b)
	l.readIf(then.bias)
	l.writeIf(then.sums)
	l.word(p.M, p.N, p.K)
	l.flag(lda%4 == 0 && a.ptr()%16 == 0)
	l.flag(ldb%4 == 0 && b.ptr()%16 == 0)
	l.flag(then.relu)
	l.word(n)
	l.writeRange(partial)
	if n == 1 {
		l.word(0)
	} else {
		tickets := parts.Range(0, ticketBytes)
		l.writeRange(tickets)
		l.Reads = append(l.Reads, tickets)
	}
	return g.runAs(l, kernelKey{name, l.suffix})
}
