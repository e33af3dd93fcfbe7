package gpuop

import (
	"context"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// The kernels of index.cu before and after those of an operation.
var (
	mergeIndex   = named("merge_index")
	sortGathered = named("sort_gathered")
	markLast     = named("mark_last")
)

func indexed(t *entries) {
	t.run("take", take, backend.Take)
	t.run("gather", gather, backend.Gather)
	t.run("gather_grad", gatherGrad, backend.GatherGrad)
	t.run("scatter", scatter, backend.Scatter)
	t.run("take_grad", takeGrad, backend.TakeGrad)
	t.run("sort_index", sortIndex, backend.SortIndex)
	t.run("scan_grad", scanGrad, backend.ScanGrad, backend.ScanGradOnto)
	t[backend.ScanGrad].can, t[backend.ScanGradOnto].can = canScan, canScan
}

// index adds the operand of indices, and whether they have 64 bits.
func (l *launcher) index() *launcher { return l.operands(2).Flag(l.arg(2).Dtype.Size() == 8) }

// missing adds the bits of a missing element, and the word for faults.
func (l *launcher) missing() *launcher { return l.Bits(l.Dtype.Missing()).operands(3) }

func (l *launcher) taking(t *plan.Take) *launcher { return l.Word(t.Outer, t.Rows, t.Count, t.Inner) }

func take(_ context.Context, l *launcher, k name) error {
	return l.Each(l.arg(0).Count()).operands(0, 1).index().missing().taking(backend.ParamsOf[plan.Take](l.c.Params())).run(k)
}

// sortedRun is the number of keys that one block sorts, as in sort.h.
const sortedRun = 2048

// sortIndex sorts runs in shared memory and merges them.
func sortIndex(_ context.Context, l *launcher, k name) error {
	p, n := backend.ParamsOf[plan.Sort](l.c.Params()), l.arg(0).Count()
	return l.sorted(l.arg(0).Range(), l.arg(1).Range(), func(to device.Range) error {
		return l.Memory(to, backend.Write).index().Word(n, p.Rows, p.Skip).run(k)
	})
}

// sorted calls runs to make sorted runs of keys in order or spare, with one block per run. Then it
// merges pairs of runs between the two until order is one run.
func (l *launcher) sorted(order, spare device.Range, runs func(to device.Range) error) error {
	n := int(order.Bytes / 8)
	to, other := order, spare
	for width := sortedRun; width < n; width *= 2 {
		to, other = other, to
	}
	l.Blocks((n+sortedRun-1)/sortedRun, threads(2*n, sortedRun/2), 1)
	if err := runs(to); err != nil {
		return err
	}
	for width := sortedRun; width < n; width *= 2 {
		l.again("merge index").Each(n).Memory(other, backend.Write).Memory(to, backend.Read).Word(n, width)
		if err := l.run(mergeIndex); err != nil {
			return err
		}
		to, other = other, to
	}
	return nil
}

// takeGrads sets one block per row and 256 columns, but at most that many per row.
func (l *launcher) takeGrads(rows int, t *plan.TakeGrad, most int) *launcher {
	l.Blocks(rows, 32, 8).Grid[1] = uint32(min((t.Outer*t.Inner+255)/256, most))
	return l
}

func takeGrad(_ context.Context, l *launcher, k name) error {
	t := backend.ParamsOf[plan.TakeGrad](l.c.Params())
	return l.takeGrads(t.Count, t, maxGridY).all().taking(&t.Take).Flag(t.Mean).run(k)
}

// A launch scans at most scannedPlaces indices, as in index.cu, and at most scannedInAll for all
// rows together. Otherwise the indices are sorted, which costs a launch, the memory of the sorted
// index, and another launch to zero the rows without an index. The limits are estimates, not
// measurements.
const (
	scannedPlaces = 2048
	scannedInAll  = 1 << 18
	// scanBlocks fills a GPU. With more columns, a block reads the indices once for several of
	// them.
	scanBlocks = 4096
)

func canScan(_ *Backend, c *backend.Call) bool {
	t := backend.ParamsOf[plan.TakeGrad](c.Params())
	return t.Count > 0 && t.Count <= scannedPlaces && t.Rows <= scannedInAll/t.Count && table[c.Op].kernel.has(c.Dtype)
}

func scanGrad(_ context.Context, l *launcher, k name) error {
	t := backend.ParamsOf[plan.TakeGrad](l.c.Params())
	l.takeGrads(t.Rows, t, max(1, scanBlocks/t.Rows))
	return l.operands(0, 1).index().taking(&t.Take).Word(t.Skip).Flag(t.Mean, l.c.Op == backend.ScanGradOnto).run(k)
}

// gathered adds the last arguments of a kernel that gathers.
func (l *launcher) gathered() *launcher {
	g := l.c.Plan.(*plan.Gather)
	c := g.Columns
	return l.Word(c.Count(), g.Length, g.IndexStride, g.Rows, g.XStride).dims("the index", c.Dims, c.Dst, c.Src)
}

func gather(_ context.Context, l *launcher, k name) error {
	return l.Each(l.arg(0).Count()).operands(0, 1).index().missing().gathered().run(k)
}

// gatherGrad sorts the positions of the index by the element that they select. Then one thread adds
// to each element.
func gatherGrad(ctx context.Context, l *launcher, k name) error {
	n, all := l.arg(2).Count(), l.arg(0).Count()
	if uint64(max(n, all)) >= math.MaxUint32 {
		return fmt.Errorf("%w: %d indices of %d elements; kernels take fewer than 2^32-1 of each", backend.ErrUnsupported, n, all)
	}
	const key = 8
	merged := 0
	if n > sortedRun {
		merged = key * n
	}
	return l.inScratch(ctx, key*n+merged, func(scratch device.Range) error {
		order, spare := cut(scratch, key*n)
		err := l.sorted(order, spare, func(to device.Range) error {
			return l.Memory(to, backend.Write).index().Word(n).operands(3).gathered().run(sortGathered)
		})
		if err != nil {
			return err
		}
		return l.again(l.c.Op.Name()).Each(n).operands(0, 1).Memory(order, backend.Read).Word(n).run(k)
	})
}

// scatter sets one thread per element of the index. If several may select one element, another
// launch finds the last of them.
func scatter(ctx context.Context, l *launcher, k name) error {
	n, all := l.arg(2).Count(), l.arg(0).Count()
	run := func(last device.Range) error {
		l.Each(n).operands(0, 1).Bits(l.Dtype.Bits(l.c.C[0])).index().operands(3).Memory(last, backend.Read)
		return l.gathered().run(k)
	}
	if g := l.c.Plan.(*plan.Gather); g.Distinct || g.Length == 1 || all == 0 {
		return run(device.Range{})
	}
	if uint64(n) >= math.MaxUint32 {
		return fmt.Errorf("%w: %d indices; kernels take fewer than 2^32-1", backend.ErrUnsupported, n)
	}
	return l.inScratch(ctx, 4*all, func(last device.Range) error {
		if err := l.b.stream.Memset(last.Ptr, 0, last.Bytes); err != nil {
			return err
		}
		l.again("mark last").Each(n).Memory(last, backend.Update).index().gathered()
		if err := l.run(markLast); err != nil {
			return err
		}
		l.again(l.c.Op.Name())
		return run(last)
	})
}
