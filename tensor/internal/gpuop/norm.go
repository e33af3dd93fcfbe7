package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

var (
	normalizeGrads    = named("normalize_grads")
	normalizeChannels = named("normalize_channels")
	batchNormSums     = named("batch_norm_sums")
	batchNormGradSums = named("batch_norm_grad_sums")
)

func norms(t *entries) {
	t.run("normalize", normalize, backend.Normalize)
	t.run("add_normalize", normalize, backend.AddNormalize)
	t.run("normalize_grad", normalizeGrad, backend.NormalizeGrad, backend.NormalizeGradOnto)
	t[backend.NormalizeGradOnto].can = func(_ *Backend, c *backend.Call) bool { return !c.Narrow && table[c.Op].kernel.has(c.Dtype) }
	t.run("normalize_columns", normalizeWeightGrad, backend.NormalizeWeightGrad)
	t.run("batch_norm", batchNorm, backend.BatchNorm, backend.BatchNormTraining)
	t.run("batch_norm_grad", batchNormGrad, backend.BatchNormGrad)
}

// normRows sets one block per row. A thread keeps 48 bytes of a row of float or double in
// registers. Such a block has at most 64 threads, because larger ones wait longer at barriers, or
// up to 256 if the row takes as many.
func (l *launcher) normRows(p *plan.RowNorm) *launcher {
	cols := p.Per * p.Inner
	t := threads(cols, 512)
	if !l.c.Narrow {
		words := cols * l.Dtype.Size() / 4
		t = max(threads(words, 64), threads((words+2)/3, 256))
	}
	return l.Blocks(p.N*p.Groups, t, 1)
}

// norm adds the kernels' struct of that name.
func (l *launcher) norm(p *plan.RowNorm) *launcher {
	return l.Word(p.N, p.Groups, p.Per, p.Inner).Double(p.Eps).Flag(p.Centered)
}

// narrowNorm is the largest number of narrow elements of a row for one warp.
const narrowNorm = 2048

// normed adds the last arguments of a kernel over rows. For narrow elements it sets one warp per
// short row.
func (l *launcher) normed(p *plan.RowNorm) *launcher {
	if l.c.Narrow {
		short := p.Per*p.Inner <= narrowNorm
		if l.Flag(short); short {
			l.Blocks((p.N*p.Groups+rowsInBlock-1)/rowsInBlock, 32*rowsInBlock, 1)
		}
	}
	return l.norm(p)
}

func normalize(_ context.Context, l *launcher, k name) error {
	p := l.c.Plan.(*plan.RowNorm)
	return l.normRows(p).all().normed(p).run(k)
}

// Up to fewRows rows, one launch computes all gradients: with blocks of rowsOfNorm rows, the memory
// for parts has slots for what each block writes.
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

func normalizeGrad(ctx context.Context, l *launcher, k name) error {
	p, onto := l.c.Plan.(*plan.RowNorm), l.c.Op == backend.NormalizeGradOnto
	n := (p.N + rowsOfNorm - 1) / rowsOfNorm
	weights := !l.arg(normDWeight).None() || !l.arg(normDBias).None()
	if !weights || !normalizeGrads.has(l.Dtype) || p.Groups > 1 || p.Inner > 1 || p.N > fewRows || 2*n*p.Per > partNumbers {
		l.normRows(p).operands(normDX, normDY, normX, normWeight, normStats)
		if !l.c.Narrow {
			l.Flag(onto)
		}
		if err := l.normed(p).run(k); err != nil || !weights {
			return err
		}
		l.again("normalize weight grad")
		return l.normWeights(ctx, p, normDWeight, normDBias, normDY, normX, normStats)
	}
	l.Blocks(n, 256, 1).operands(normDX, normDWeight, normDBias).meet(ctx, n > 1)
	return l.operands(normDY, normX, normWeight, normStats).Flag(onto).norm(p).run(normalizeGrads)
}

func normalizeWeightGrad(ctx context.Context, l *launcher, _ name) error {
	return l.normWeights(ctx, l.c.Plan.(*plan.RowNorm), 0, 1, 2, 3, 4)
}

// normWeights computes the gradients of the weights and biases; dw to stats are the operands'
// numbers.
func (l *launcher) normWeights(ctx context.Context, p *plan.RowNorm, dw, db, dy, x, stats int) error {
	weights := p.Groups * p.Per
	units := (weights + 31) / 32
	k, across, rows, n := table[backend.NormalizeWeightGrad].kernel, 32, 16, partsFor(units, p.N, 64)
	if p.Inner > 1 {
		k, units, across, rows, n = normalizeChannels, weights, 256, 1, partsFor(weights, p.N*p.Inner, 4096)
	}
	l.Blocks(units*n, across, rows).operands(dw, db).meet(ctx, n > 1)
	return l.operands(dy, x, stats).Word(n).norm(p).run(k)
}

// channelThreads is the number of threads of batch norm's blocks.
const channelThreads = 128

// channelParts returns the number of parts of each channel.
func channelParts(p *plan.BatchNorm) int {
	return max(1, min((fourEach+p.C/2)/max(1, p.C), p.N*p.Inner/1024))
}

func batchNorm(ctx context.Context, l *launcher, k name) error {
	p := l.c.Plan.(*plan.BatchNorm)
	parts := channelParts(p)
	run := func(sums device.Range) error {
		l.again(l.Name).Blocks(p.C*parts, channelThreads, 1).all().Memory(sums, backend.Read)
		return l.Double(p.Eps).Word(p.N, p.C, p.Inner, parts, parts).Flag(p.Training).run(k)
	}
	if !p.Training {
		return run(device.Range{})
	}
	return l.inScratch(ctx, (1+2*p.C*parts)*8, func(sums device.Range) error {
		l.Blocks(p.C*parts, channelThreads, 1).Memory(sums, backend.Write).operands(2).Memory(l.arg(7).Range(), backend.Read)
		if err := l.Double(p.Momentum).Word(p.N, p.C, p.Inner, parts).run(batchNormSums); err != nil {
			return err
		}
		return run(sums)
	})
}

func batchNormGrad(ctx context.Context, l *launcher, k name) error {
	p := l.c.Plan.(*plan.BatchNorm)
	parts, chunks := channelParts(p), 1
	if !l.arg(0).None() {
		chunks = parts
	}
	return l.inScratch(ctx, 2*p.C*parts*8, func(sums device.Range) error {
		l.Blocks(p.C*parts, channelThreads, 1).Memory(sums, backend.Write).operands(3, 4, 6).Word(p.N, p.C, p.Inner, parts)
		if err := l.run(batchNormGradSums); err != nil {
			return err
		}
		l.again(l.Name).Blocks(p.C*chunks, channelThreads, 1).all().Memory(sums, backend.Read)
		return l.Word(p.N, p.C, p.Inner, parts, chunks).Flag(p.Training).run(k)
	})
}
