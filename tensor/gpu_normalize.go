package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func (l *gpuLaunch) norm(p *kernel.RowNorm) {
	l.word(p.N, p.Groups, p.Per, p.Inner)
	l.double(p.Eps)
	l.flag(p.Centered)
}

// normLaunch begins the launch of a kernel with a block for each row.
func (g *gpuKernels) normLaunch(name string, p *kernel.RowNorm, like *Tensor) *gpuLaunch {
	l := g.newLaunch(name, like.dtype, 0)
	l.Grid[0], l.Block[0] = blocks(p.N*p.Groups, 1), threads(p.Per*p.Inner, 512)
	return l
}

// narrowNorm is the most elements of a row of bfloat16 that a warp takes.
const narrowNorm = 2048

// normed ends the arguments of a kernel that takes rows: those of bfloat16 have a warp for each narrow row.
func (l *gpuLaunch) normed(p *kernel.RowNorm) {
	if l.suffix == "_bf16" {
		narrow := p.Per*p.Inner <= narrowNorm
		if l.flag(narrow); narrow {
			l.Grid[0], l.Block[0] = blocks(p.N*p.Groups, rowsInBlock), 32*rowsInBlock
		}
	}
	l.norm(p)
}

func (g *gpuKernels) normalize(p *kernel.RowNorm, y, stats, x, w, b *Tensor) error {
	l := g.normLaunch("normalize", p, y)
	l.write(y)
	l.write(stats)
	l.read(x)
	l.readIf(w)
	l.readIf(b)
	l.normed(p)
	return g.run(l)
}

func (g *gpuKernels) addNormalize(p *kernel.RowNorm, sum, y, stats, x, other, w, b *Tensor) (bool, error) {
	if sum.dtype == BFloat16 {
		return false, nil
	}
	l := g.normLaunch("add normalize", p, y)
	l.write(sum)
	l.write(y)
	l.write(stats)
	l.read(x)
	l.read(other)
	l.readIf(w)
	l.readIf(b)
	l.norm(p)
	return true, g.run(l)
}

// Few rows are those whose gradients are one launch: with blocks of so many rows there are places for what each leaves.
const (
	fewRows    = 1024
	rowsOfNorm = 8
)

func (g *gpuKernels) normalizeGradAdds(dt Dtype) bool { return dt != BFloat16 }

func (g *gpuKernels) normalizeGrad(ctx context.Context, p *kernel.RowNorm, dx, dw, db, dy, x, w, stats *Tensor, onto bool) error {
	n := (p.N + rowsOfNorm - 1) / rowsOfNorm
	switch {
	case dw == nil && db == nil:
		return g.normalizeInputGrad(p, dx, dy, x, w, stats, onto)
	case x.dtype == BFloat16 || p.Groups > 1 || p.Inner > 1 || p.N > fewRows || 2*n*p.Per > partNumbers:
		if err := g.normalizeInputGrad(p, dx, dy, x, w, stats, onto); err != nil {
			return err
		}
		return g.normalizeWeightGrad(ctx, p, dw, db, dy, x, stats)
	}
	parts, err := g.takeParts(ctx, n > 1)
	if err != nil {
		return fmt.Errorf("tensor: normalize grads: %w", err)
	}
	l := g.newLaunch("normalize grads", x.dtype, 0)
	l.Grid[0] = blocks(n, 1)
	l.onto(dx, onto)
	l.writeIf(dw)
	l.writeIf(db)
	l.meet(parts)
	l.read(dy)
	l.read(x)
	l.readIf(w)
	l.read(stats)
	l.flag(onto)
	l.norm(p)
	return g.run(l)
}

// onto is for memory that a kernel writes, or adds to.
func (l *gpuLaunch) onto(t *Tensor, adds bool) {
	if adds {
		l.update(t)
	} else {
		l.write(t)
	}
}

func (g *gpuKernels) normalizeInputGrad(p *kernel.RowNorm, dx, dy, x, w, stats *Tensor, onto bool) error {
	l := g.normLaunch("normalize grad", p, dx)
	l.onto(dx, onto)
	l.read(dy)
	l.read(x)
	l.readIf(w)
	l.read(stats)
	if dx.dtype != BFloat16 {
		l.flag(onto)
	}
	l.normed(p)
	return g.run(l)
}

func (g *gpuKernels) normalizeWeightGrad(ctx context.Context, p *kernel.RowNorm, dw, db, dy, x, stats *Tensor) error {
	weights := p.Groups * p.Per
	name, units, n := "normalize columns", (weights+31)/32, 1
	if p.Inner > 1 {
		name, units = "normalize channels", weights
	}
	if units <= partTickets {
		if n = partsFor(units, p.N, 64); p.Inner > 1 {
			n = partsFor(units, p.N*p.Inner, 4096)
		}
	}
	parts, err := g.takeParts(ctx, n > 1)
	if err != nil {
		return fmt.Errorf("tensor: %s: %w", name, err)
	}
	l := g.newLaunch(name, x.dtype, 0)
	l.Grid[0] = blocks(units*n, 1)
	if p.Inner == 1 {
		l.Block = [3]uint32{32, 8, 1}
	}
	l.writeIf(dw)
	l.writeIf(db)
	l.meet(parts)
	l.read(dy)
	l.read(x)
	l.read(stats)
	l.word(n)
	l.norm(p)
	return g.run(l)
}

func (g *gpuKernels) batchNorm(ctx context.Context, p *kernel.BatchNorm, y, stats, x, w, b, mean, variance, batches *Tensor) error {
	parts, chunks := partsFor((p.C+3)/4, p.N*p.Inner, 1024), partsFor((p.C+3)/4, p.N*p.Inner, 1024)
	run := func(sums device.Range) error {
		l := g.newLaunch("batch norm", x.dtype, 0)
		l.Grid[0] = blocks(p.C*chunks, 1)
		l.write(y)
		l.write(stats)
		l.read(x)
		l.readIf(w)
		l.readIf(b)
		keep := l.readIf
		if p.Training {
			keep = l.updateIf
		}
		keep(mean)
		keep(variance)
		keep(batches)
		l.readRange(sums)
		l.double(p.Eps)
		l.word(p.N, p.C, p.Inner, parts, chunks)
		l.flag(p.Training)
		return g.run(l)
	}
	if !p.Training {
		return run(device.Range{})
	}
	return g.rt.withScratch(ctx, "batch norm", stats, 1+2*p.C*parts, func(scratch memcache.Block) error {
		r := scratch.Range(0, int64(1+2*p.C*parts)*8)
		l := g.newLaunch("batch norm sums", x.dtype, 0)
		l.Grid[0] = blocks(p.C*parts, 1)
		l.writeRange(r)
		l.read(x)
		l.readIf(batches)
		l.double(p.Momentum)
		l.word(p.N, p.C, p.Inner, parts)
		if err := g.run(l); err != nil {
			return err
		}
		return run(r)
	})
}

func (g *gpuKernels) batchNormGrad(ctx context.Context, p *kernel.BatchNorm, dx, dw, db, dy, x, w, stats *Tensor) error {
	parts, chunks := partsFor((p.C+3)/4, p.N*p.Inner, 1024), 1
	if dx != nil {
		chunks = partsFor((p.C+3)/4, p.N*p.Inner, 1024)
	}
	return g.rt.withScratch(ctx, "batch norm grad", stats, 2*p.C*parts, func(scratch memcache.Block) error {
		r := scratch.Range(0, int64(2*p.C*parts)*8)
		l := g.newLaunch("batch norm grad sums", x.dtype, 0)
		l.Grid[0] = blocks(p.C*parts, 1)
		l.writeRange(r)
		l.read(dy)
		l.read(x)
		l.read(stats)
		l.word(p.N, p.C, p.Inner, parts)
		if err := g.run(l); err != nil {
			return err
		}
		l = g.newLaunch("batch norm grad", x.dtype, 0)
		l.Grid[0] = blocks(p.C*chunks, 1)
		l.writeIf(dx)
		l.writeIf(dw)
		l.writeIf(db)
		l.read(dy)
		l.read(x)
		l.readIf(w)
		l.read(stats)
		l.readRange(r)
		l.word(p.N, p.C, p.Inner, parts, chunks)
		l.flag(p.Training)
		return g.run(l)
	})
}
