package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// weightEdition is an edition of the kernels of conv_weight_grad.cu. A block computes a tile of
// weights over a part of the positions. Its slots iterate over units of positions, and each adds up
// at most partUnits of them.
type weightEdition struct {
	kernel     name
	x, y       int // channels of a tile; x counts elements of the window for weightAny
	rows, cols int // of a unit
	slots      int
	shared     uint32 // bytes
}

var (
	weightFew     = weightEdition{named("conv_weight_grad_3_few"), 16, 16, 1, 32, 4, 73728}
	weight8       = weightEdition{named("conv_weight_grad_3_8"), 16, 32, 4, 8, 4, 78336}
	weight16      = weightEdition{named("conv_weight_grad_3_16"), 16, 32, 2, 16, 4, 79872}
	weight32      = weightEdition{named("conv_weight_grad_3_32"), 16, 32, 1, 32, 4, 92160}
	weightBy2Of8  = weightEdition{named("conv_weight_grad_3_by_2_8"), 16, 32, 2, 8, 4, 78336}
	weightBy2Of16 = weightEdition{named("conv_weight_grad_3_by_2_16"), 16, 32, 1, 16, 4, 78336}
	// weightAny is for few weights of any window. Its units continue from one row, and from one
	// image, to the next.
	weightAny = weightEdition{named("conv_weight_grad_any"), 16, 32, 1, 32, 8, 55296}

	convParts = named("conv_parts")
)

const (
	// fewElements and fewWeights are the largest numbers for weightAny: of elements of a window in
	// all channels, and of weights. Of more weights, tiles compute more for each number that they
	// read.
	fewElements, fewWeights = 128, 8192
	// leastOfX is the number of channels of x from which on windows of 3 by 3 have a kernel.
	leastOfX = 9
	// weightBlocks is two blocks for each multiprocessor of an H100 or H200.
	weightBlocks = 264
	// partUnits is the largest number of units in one sum. Sums of more would be less precise than
	// those of tiles, which are added in parts.
	partUnits = 64
	// mostUnits keeps the kernels' counts of units, positions and jobs below 2^32.
	mostUnits = 1 << 26
)

// weightEditionOf returns the edition for a convolution, or nil if tiles are better or the GPU
// cannot run it.
func (l *launcher) weightEditionOf(p *plan.Conv) *weightEdition {
	t, cols := runTile(p), p.Out[1]
	three := (t == run3 || t == run3By2) && p.C >= leastOfX
	switch {
	case !weightAny.kernel.has(l.Dtype) || !three && (p.Inner() > fewElements || p.K*p.Inner() > fewWeights) || !l.b.hasMatrixUnits():
		return nil
	case !three:
		return &weightAny
	case t == run3By2:
		if cols <= weightBy2Of8.cols {
			return &weightBy2Of8
		}
		return &weightBy2Of16
	case p.K <= weightFew.y:
		return &weightFew
	case cols <= weight8.cols:
		return &weight8
	case cols <= weight16.cols:
		return &weight16
	}
	return &weight32
}

// split returns the number of blocks for one part of the positions, and the number of parts; ok is
// false if sums would be too long.
func (e *weightEdition) split(p *plan.Conv, weights int) (jobs, parts int, ok bool) {
	up := func(a, b int) int { return (a + b - 1) / b }
	columns, units := p.C, p.N*up(p.Out[0], e.rows)*up(p.Out[1], e.cols)
	if e == &weightAny {
		columns, units = p.Inner(), up(p.N*p.Places(), e.cols)
	}
	jobs = up(columns, e.x) * up(p.K, e.y) * p.Groups
	parts = max(weightBlocks/jobs, up(units, e.slots*partUnits))
	parts = max(1, min(parts, maxPartial/weights, up(units, e.slots)))
	return jobs, parts, parts*e.slots*partUnits >= units && max(units, jobs*parts) <= mostUnits
}

// A gradient of the weights has few results, and each is a sum over all positions of all images. So
// the sum is cut into parts, which write to scratch memory of at most maxPartial elements. Then the
// parts are added, in an order that depends only on their number.
const (
	maxPartial  = 5 << 18
	leastPlaces = 256
)

// weightParts returns the number of parts, and the number of positions in each except the last.
func weightParts(p *plan.Conv, tiles, weights int) (parts, chunk int) {
	places := p.N * p.Places()
	parts = max(1, min(fewTiles/max(1, tiles), maxPartial/weights, places/leastPlaces))
	chunk = ((places+parts-1)/parts + 15) / 16 * 16
	return (places + chunk - 1) / chunk, chunk
}

func convWeightGrad(ctx context.Context, l *launcher, k name) error {
	p, weights := l.c.Plan.(*plan.Conv), l.arg(0).Count()
	if err := fits(p); err != nil {
		return err
	}
	if p.K <= fewChannels && p.K*p.Inner() <= leastPlaces {
		return l.Blocks(weights, 256, 1).operands(0, 1, 2).conv(p).run(k)
	}
	if e := l.weightEditionOf(p); e != nil {
		if jobs, parts, ok := e.split(p, weights); ok {
			return l.inParts(ctx, parts, func(dw device.Range) error {
				l.Blocks(jobs*parts, 256, 1).Memory(dw, backend.Write).operands(1, 2).Word(parts).conv(p)
				l.SharedBytes = e.shared
				return l.run(e.kernel)
			})
		}
	}
	t := tile64
	if tile32.weightGrad.has(l.Dtype) && p.K <= tile32.rows {
		t = tile32
	}
	parts, chunk := weightParts(p, t.count(p.K, p.Inner(), p.Groups), weights)
	return l.inParts(ctx, parts, func(dw device.Range) error {
		l.convTiles(t, p.K, p.Inner(), p.Groups*parts).Memory(dw, backend.Write)
		return l.operands(1, 2).Word(parts, chunk).conv(p).run(t.weightGrad)
	})
}

// inParts calls f for the gradient of the weights. If parts is above 1, f writes that many parts to
// scratch memory, and inParts adds them.
func (l *launcher) inParts(ctx context.Context, parts int, f func(device.Range) error) error {
	dw := l.arg(0)
	if parts == 1 {
		return f(dw.Range())
	}
	return l.inScratch(ctx, parts*int(dw.Bytes), func(all device.Range) error {
		if err := f(all); err != nil {
			return err
		}
		n, threads := dw.Count(), 1
		for threads < 32 && 4*threads < parts {
			threads *= 2
		}
		l.again(l.Name).Blocks((n+256/threads-1)/(256/threads), 256/threads, threads)
		return l.operands(0).Memory(all, backend.Read).Word(n, parts).run(convParts)
	})
}
