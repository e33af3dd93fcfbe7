package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/internal/backend"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

var (
	normalizeGrads    = named("normalize_grads")
	normalizeChannels = named("normalize_channels")
	batchNormSums     = named("batch_norm_sums")
	batchNormGradSums = named("batch_norm_grad_sums")
)

func norms(t *entries) {
	t.run("normalize", normalize, backend.Normalize)
	t.run("add_normalize", addNormalize, backend.AddNormalize)
	t.run("normalize_grad", normalizeGrad, backend.NormalizeGrad, backend.NormalizeGradOnto)
	t[backend.NormalizeGradOnto].can = func(_ *Backend, c *backend.Call) bool { return !c.Narrow && table[c.Op].kernel.has(c.Dtype) }
	t.run("normalize_columns", normalizeWeightGrad, backend.NormalizeWeightGrad)
	t.run("batch_norm", batchNorm, backend.BatchNorm, backend.BatchNormTraining)
	t.run("batch_norm_grad", batchNormGrad, backend.BatchNormGrad)
}

// normRows makes it a launch with a block for each row.
func (l *launch) normRows(p *kernel.RowNorm) {
	l.Grid[0], l.Block[0] = blocks(p.N*p.Groups, 1), threads(p.Per*p.Inner, 512)
}

// norm is the kernels' struct of that name.
func (l *launch) norm(p *kernel.RowNorm) {
	l.word(p.N, p.Groups, p.Per, p.Inner)
	l.double(p.Eps)
	l.flag(p.Centered)
}

// narrowNorm is the most elements of a narrow row that a warp takes.
const narrowNorm = 2048

// normed ends the arguments of a kernel that takes rows: of narrow elements a warp takes each short row.
func (l *launch) normed(p *kernel.RowNorm) {
	if l.c.Narrow {
		short := p.Per*p.Inner <= narrowNorm
		if l.flag(short); short {
			l.Grid[0], l.Block[0] = blocks(p.N*p.Groups, rowsInBlock), 32*rowsInBlock
		}
	}
	l.norm(p)
}

func normalize(_ context.Context, l *launch, k name) error {
	p := l.c.Plan.(*kernel.RowNorm)
	l.normRows(p)
	l.all()
	l.normed(p)
	return l.run(k)
}

func addNormalize(_ context.Context, l *launch, k name) error {
	p := l.c.Plan.(*kernel.RowNorm)
	l.normRows(p)
	l.all()
	l.norm(p)
	return l.run(k)
}

// Few rows are those whose gradients are one launch: with blocks of so many rows there are places for what each leaves.
const (
	fewRows    = 1024
	rowsOfNorm = 8
)

// The operands of a gradient of a normalisation: =dx =dweight? =dbias? dy x weight? stats.
const (
	normDX = iota
	normDWeight
	normDBias
	normDY
	normX
	normWeight
	normStats
)

func normalizeGrad(ctx context.Context, l *launch, k name) error {
	p, onto := l.c.Plan.(*kernel.RowNorm), l.c.Op == backend.NormalizeGradOnto
	n := (p.N + rowsOfNorm - 1) / rowsOfNorm
	weights := !l.arg(normDWeight).None() || !l.arg(normDBias).None()
	if !weights || !normalizeGrads.has(l.dtype) || p.Groups > 1 || p.Inner > 1 || p.N > fewRows || 2*n*p.Per > partNumbers {
		l.normRows(p)
		l.operands(normDX, normDY, normX, normWeight, normStats)
		if !l.c.Narrow {
			l.flag(onto)
		}
		l.normed(p)
		if err := l.run(k); err != nil || !weights {
			return err
		}
		l.again("normalize weight grad", 0)
		return l.normWeights(ctx, p, normDWeight, normDBias, normDY, normX, normStats)
	}
	parts, err := l.b.takeParts(ctx, n > 1)
	if err != nil {
		return err
	}
	l.Grid[0] = blocks(n, 1)
	l.operands(normDX, normDWeight, normDBias)
	l.meet(parts)
	l.operands(normDY, normX, normWeight, normStats)
	l.flag(onto)
	l.norm(p)
	return l.run(normalizeGrads)
}

func normalizeWeightGrad(ctx context.Context, l *launch, _ name) error {
	return l.normWeights(ctx, l.c.Plan.(*kernel.RowNorm), 0, 1, 2, 3, 4)
}

// normWeights are the gradients of the weights and biases, from the operands with these numbers.
func (l *launch) normWeights(ctx context.Context, p *kernel.RowNorm, dw, db, dy, x, stats int) error {
	weights := p.Groups * p.Per
	k, units, n := table[backend.NormalizeWeightGrad].kernel, (weights+31)/32, 1
	if p.Inner > 1 {
		k, units = normalizeChannels, weights
	}
	if units <= partTickets {
		if n = partsFor(units, p.N, 64); p.Inner > 1 {
			n = partsFor(units, p.N*p.Inner, 4096)
		}
	}
	parts, err := l.b.takeParts(ctx, n > 1)
	if err != nil {
		return err
	}
	l.Grid[0] = blocks(units*n, 1)
	if p.Inner == 1 {
		l.Block = [3]uint32{32, 8, 1}
	}
	l.operands(dw, db)
	l.meet(parts)
	l.operands(dy, x, stats)
	l.word(n)
	l.norm(p)
	return l.run(k)
}

func batchNorm(ctx context.Context, l *launch, k name) error {
	p := l.c.Plan.(*kernel.BatchNorm)
	parts := partsFor((p.C+3)/4, p.N*p.Inner, 1024)
	run := func(sums device.Range) error {
		l.again(l.Name, 0)
		l.Grid[0] = blocks(p.C*parts, 1)
		l.operands(0, 1, 2, 3, 4, 5, 6, 7)
		l.memory(sums, backend.Read)
		l.double(p.Eps)
		l.word(p.N, p.C, p.Inner, parts, parts)
		l.flag(p.Training)
		return l.run(k)
	}
	if !p.Training {
		return run(device.Range{})
	}
	return l.inScratch(ctx, (1+2*p.C*parts)*8, func(sums device.Range) error {
		l.Grid[0] = blocks(p.C*parts, 1)
		l.memory(sums, backend.Write)
		l.operands(2)
		l.operand(l.arg(7), backend.Read)
		l.double(p.Momentum)
		l.word(p.N, p.C, p.Inner, parts)
		if err := l.run(batchNormSums); err != nil {
			return err
		}
		return run(sums)
	})
}

func batchNormGrad(ctx context.Context, l *launch, k name) error {
	p := l.c.Plan.(*kernel.BatchNorm)
	parts, chunks := partsFor((p.C+3)/4, p.N*p.Inner, 1024), 1
	if !l.arg(0).None() {
		chunks = parts
	}
	return l.inScratch(ctx, 2*p.C*parts*8, func(sums device.Range) error {
		l.Grid[0] = blocks(p.C*parts, 1)
		l.memory(sums, backend.Write)
		l.operands(3, 4, 6)
		l.word(p.N, p.C, p.Inner, parts)
		if err := l.run(batchNormGradSums); err != nil {
			return err
		}
		l.again(l.Name, 0)
		l.Grid[0] = blocks(p.C*chunks, 1)
		l.all()
		l.memory(sums, backend.Read)
		l.word(p.N, p.C, p.Inner, parts, chunks)
		l.flag(p.Training)
		return l.run(k)
	})
}
