package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// tiling is how a file of kernels cuts a product: into tiles of side by side results, stage steps of the inner dimension at a time.
type tiling struct {
	nn, nt, tn  string // its kernels
	side, stage int
}

var (
	narrowTiling = &tiling{"product nn", "product nt", "product tn", 32, 64}                // product.cu
	wideTiling   = &tiling{"product wide nn", "product wide nt", "product wide tn", 64, 32} // product_wide.cu
)

func (t *tiling) tiles(m, n int) int { return (m + t.side - 1) / t.side * ((n + t.side - 1) / t.side) }
func (t *tiling) steps(k int) int    { return (k + t.stage - 1) / t.stage }

// room is the bytes that a part of the inner dimension leaves for each tile: its results, and sums of rows in float64.
func (t *tiling) room() int { return (t.side*t.side + 2*t.side) * 4 }

// own tells how kernels of our own cut a product; nil: the library's are faster, as measured on an H200 (docs/decisions/planned-products.md).
func (g *gpuKernels) own(p kernel.MatMul, dst *Tensor, then epilogue) *tiling {
	if dst.dtype != Float32 || p.Batch != nil || p.K == 0 || p.TransA && p.TransB || dst.ptr()%16 != 0 || g.tf32 {
		return nil
	}
	return ownTiling(p, then)
}

// masks: a mask costs nothing in a launch of our own, if the sums that come after it are in such a launch, too.
func (g *gpuKernels) masks(p kernel.MatMul, dst *Tensor, fanIn int) bool {
	then := epilogue{keep: dst}
	return g.own(p, dst, then) != nil && ownTiling(kernel.MatMul{M: p.N, N: fanIn, K: p.M, TransA: true}, epilogue{sums: dst}) != nil
}

// ownTiling is a variable for tests, of all products by each way.
var ownTiling = func(p kernel.MatMul, then epilogue) *tiling {
	all := narrowTiling.tiles(p.M, p.N)
	steps := all * narrowTiling.steps(p.K)
	if all <= 64 && steps <= 256 || p.TransA && p.K >= leastRows && steps <= 512 {
		return narrowTiling
	}
	all = wideTiling.tiles(p.M, p.N)
	blocks := all * productParts(wideTiling, all, wideTiling.steps(p.K))
	if blocks < wideBlocks*3/4 || blocks > wideBlocks {
		return nil
	}
	if p.TransA && p.K >= leastRows || p.TransB && (then.relu || p.K >= 512 && p.K <= 1024) || then.keep != nil {
		return wideTiling
	}
	return nil
}

// leastRows are the fewest rows that gradients of weights were measured with: those of fewer are the library's.
const leastRows = 128

// wideBlocks are one wave of the blocks of product_wide.cu: one on each multiprocessor.
const wideBlocks = 128

// productParts is into how many parts the inner dimension is cut: few steps take less time than blocks that meet.
var productParts = func(t *tiling, tiles, steps int) int {
	most, least := enough/tiles, 1
	if t == wideTiling {
		most, least = wideBlocks/tiles, 3
	}
	if tiles > partTickets || steps < 3 {
		return 1
	}
	return max(1, min(steps/least, 8, most))
}

// ownProduct is a product and what follows it in one launch.
func (g *gpuKernels) ownProduct(ctx context.Context, t *tiling, p kernel.MatMul, dst, a, b *Tensor, then epilogue) error {
	all := t.tiles(p.M, p.N)
	n := productParts(t, all, t.steps(p.K))
	if n == 1 {
		return g.launchProduct(t, p, dst, a, b, then, 1, all, device.Range{}, memcache.Block{})
	}
	parts, err := g.takeParts(ctx, true)
	if err != nil {
		return fmt.Errorf("tensor: MatMul: %w", err)
	}
	bytes := all * n * t.room()
	return g.rt.withScratch(ctx, "MatMul", dst, bytes/4, func(scratch memcache.Block) error {
		return g.launchProduct(t, p, dst, a, b, then, n, all, scratch.Range(0, int64(bytes)), parts)
	})
}

func (g *gpuKernels) launchProduct(t *tiling, p kernel.MatMul, dst, a, b *Tensor, then epilogue, n, all int, partial device.Range, parts memcache.Block) error {
	lda, ldb, name := p.K, p.N, t.nn
	switch {
	case p.TransA:
		lda, name = p.M, t.tn
	case p.TransB:
		ldb, name = p.K, t.nt
	}
	l := g.newLaunch("matmul", dst.dtype, 0)
	l.Grid[0] = blocks(all*n, 1)
	l.write(dst)
	l.read(a)
	l.read(b)
	l.readIf(then.bias)
	l.writeIf(then.sums)
	l.readIf(then.keep)
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
