package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/internal/backend"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/plan"
)

var takeElements, gatherElements, mergeIndex = named("take"), named("gather"), named("merge_index")

func indexed(t *entries) {
	t.move(takeElements, take, backend.Take)
	t.move(gatherElements, gather, backend.Gather)
	t.run("gather_grad", gatherGrad, backend.GatherGrad)
	t.run("take_grad", takeGrad, backend.TakeGrad)
	t.run("sort_index", sortIndex, backend.SortIndex)
	t[backend.SortIndex].by = byNone
	t.run("scan_grad", scanGrad, backend.ScanGrad, backend.ScanGradOnto)
	for _, op := range []backend.Op{backend.ScanGrad, backend.ScanGradOnto} {
		t[op].can = canScan
	}
}

// index adds an operand of indices, and whether they have 64 bits.
func (l *launch) index(i int) {
	l.operands(i)
	l.flag(l.arg(i).Dtype.Size() == 8)
}

// missing is the bits of an element that is not there, and the word for faults.
func (l *launch) missing(fault int) {
	l.Args = append(l.Args, l.dtype.Missing())
	l.operands(fault)
}

func (l *launch) taking(t *plan.Take) { l.word(t.Outer, t.Rows, t.Count, t.Inner) }

func take(_ context.Context, l *launch, k name) error {
	l.each(l.arg(0).Count())
	l.operands(0, 1)
	l.index(2)
	l.missing(3)
	l.taking(backend.ParamsOf[plan.Take](l.c.Params()))
	return l.runAs(k, bySize(l.dtype))
}

// sortedRun is how many places one block sorts; it is the same in index.cu.
const sortedRun = 2048

// sortIndex sorts runs in shared memory, and merges pairs of runs from one buffer to the other until there is one.
func sortIndex(_ context.Context, l *launch, k name) error {
	p, n := backend.ParamsOf[plan.Sort](l.c.Params()), l.arg(0).Count()
	to, other := 0, 1
	for width := sortedRun; width < n; width *= 2 {
		to, other = other, to
	}
	l.Grid[0], l.Block[0] = blocks(n, sortedRun), 32
	for l.Block[0] < sortedRun/2 && 2*int(l.Block[0]) < n {
		l.Block[0] *= 2
	}
	l.operands(to)
	l.index(2)
	l.word(n, p.Rows, p.Skip)
	if err := l.runAs(k, byNone(l.dtype)); err != nil {
		return err
	}
	for width := sortedRun; width < n; width *= 2 {
		l.again("merge index", n)
		l.operands(other)
		l.operand(l.arg(to), backend.Read)
		l.word(n, width)
		if err := l.runAs(mergeIndex, byNone(l.dtype)); err != nil {
			return err
		}
		to, other = other, to
	}
	return nil
}

func takeGrad(_ context.Context, l *launch, k name) error {
	t := backend.ParamsOf[plan.TakeGrad](l.c.Params())
	l.Grid[0], l.Grid[1] = blocks(t.Count, 1), uint32(min((t.Outer*t.Inner+31)/32, maxGridY))
	l.Block = [3]uint32{32, 8, 1}
	l.all()
	l.taking(&t.Take)
	l.flag(t.Mean)
	return l.run(k)
}

// What a launch scans is at most so many places, which is the same in index.cu, and so many for all rows: sorting them costs a launch, the memory of the sorted index
// and, as rows without a place are zeroed apart, another launch. The limits were chosen by that reckoning, and not measured.
const (
	scannedPlaces = 2048
	scannedInAll  = 1 << 18
	scanBlocks    = 4096 // enough to fill a GPU: those of more columns look at the places once for several of them
)

func canScan(_ *Backend, c *backend.Call) bool {
	t := backend.ParamsOf[plan.TakeGrad](c.Params())
	return t.Count > 0 && t.Count <= scannedPlaces && t.Rows <= scannedInAll/t.Count && table[c.Op].kernel.has(c.Dtype)
}

func scanGrad(_ context.Context, l *launch, k name) error {
	t := backend.ParamsOf[plan.TakeGrad](l.c.Params())
	l.Grid[0], l.Grid[1] = blocks(t.Rows, 1), uint32(min((t.Outer*t.Inner+31)/32, max(1, scanBlocks/t.Rows)))
	l.Block = [3]uint32{32, 8, 1}
	l.operands(0, 1)
	l.index(2)
	l.taking(&t.Take)
	l.word(t.Skip)
	l.flag(t.Mean, l.c.Op == backend.ScanGradOnto)
	return l.run(k)
}

// gathered are the last arguments of a kernel that gathers.
func (l *launch) gathered() error {
	g := l.c.Plan.(*kernel.Gather)
	c := g.Columns
	if len(c.Dims) > maxDims {
		return tooMany("the index", len(c.Dims))
	}
	l.word(c.Count(), g.Length, g.IndexStride, g.Rows, g.XStride, len(c.Dims))
	l.lists(c.Dims, c.Dst, c.Src)
	return nil
}

func gather(_ context.Context, l *launch, k name) error {
	l.each(l.arg(0).Count())
	l.operands(0, 1)
	l.index(2)
	l.missing(3)
	if err := l.gathered(); err != nil {
		return err
	}
	return l.runAs(k, bySize(l.dtype))
}

func gatherGrad(_ context.Context, l *launch, k name) error {
	l.each(l.c.Plan.(*kernel.Gather).Columns.Count())
	l.operands(0, 1)
	l.index(2)
	if err := l.gathered(); err != nil {
		return err
	}
	return l.run(k)
}
