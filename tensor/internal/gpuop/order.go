package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// The kernels of order.cu before and after those of an operation.
var (
	sortRanked  = named("sort_ranked")
	mergeRanked = named("merge_ranked")
	takeRanked  = named("take_ranked")
	partSums    = named("part_sums")
)

func orders(t *entries) {
	t.run("sort_rows", sortRows, backend.Sort)
	t.run("cumsum", cumSum, backend.CumSum)
}

// sortRows sorts runs of rows in shared memory. To keep few elements, it then sorts the first
// elements of the runs alike until each row is one run. Otherwise it merges pairs of runs between
// two buffers. Finally it copies the first elements of each row to the result.
func sortRows(ctx context.Context, l *launcher, k name) error {
	o := backend.ParamsOf[plan.Order](l.c.Params())
	rows, each, cols := l.arg(1).Count()/o.Cols, sortedRun, o.Cols
	if 2*o.Keep <= sortedRun {
		each = o.Keep
	}
	key := 2 * l.Dtype.Size() // bytes of a rank with its position
	// first is the number of elements that the runs of so many leave.
	first := func(cols int) int {
		runs := (cols - 1) / sortedRun
		return runs*each + min(each, cols-runs*sortedRun)
	}
	one, two := rows*first(cols)*key, 0
	if cols > sortedRun {
		two = rows * first(first(cols)) * key
	}
	return l.inScratch(ctx, one+two, func(scratch device.Range) error {
		sorted, other := cut(scratch, one)
		runs := func(name string, to device.Range) *launcher {
			l.again(name).Blocks(rows*((cols+sortedRun-1)/sortedRun), threads(2*min(cols, sortedRun), sortedRun/2), 1)
			return l.Memory(to, backend.Write)
		}
		if err := runs(l.Name, sorted).operands(1).Flag(o.Descending).Word(each, rows, cols, o.Inner).run(k); err != nil {
			return err
		}
		for each < sortedRun && cols > sortedRun {
			cols = first(cols)
			if err := runs("sort firsts", other).Memory(sorted, backend.Read).Flag(false).Word(each, rows, cols, 1).run(sortRanked); err != nil {
				return err
			}
			sorted, other = other, sorted
		}
		for width := sortedRun; width < cols; width *= 2 {
			l.again("merge sorted").Each(rows*cols).Memory(other, backend.Write).Memory(sorted, backend.Read).Word(rows*cols, cols, width)
			if err := l.run(mergeRanked); err != nil {
				return err
			}
			sorted, other = other, sorted
		}
		kept := l.arg(0).Count()
		l.again("take sorted").Each(kept).operands(0).Memory(sorted, backend.Read).Word(kept, o.Keep, first(cols), o.Inner)
		return l.run(takeRanked)
	})
}

// cumSum cuts few rows into parts. The sums of the parts come first.
func cumSum(ctx context.Context, l *launcher, k name) error {
	r := backend.ParamsOf[plan.Rows](l.c.Params())
	n := l.arg(1).Count() / r.Cols
	parts := partsFor(n, r.Cols, 1024)
	blocks := func() *launcher { return l.Blocks(n*parts, threads(r.Cols/parts, 512), 1) }
	rows := func() *launcher { return l.Flag(l.c.C[0] != 0).Word(parts, n, r.Cols, r.Inner) }
	if parts == 1 {
		blocks().all().Word(0)
		return rows().run(k)
	}
	return l.inScratch(ctx, 8*n*parts, func(sums device.Range) error {
		blocks().Memory(sums, backend.Write).operands(1)
		if err := rows().run(partSums); err != nil {
			return err
		}
		l.again(l.Name)
		blocks().all().Memory(sums, backend.Read)
		return rows().run(k)
	})
}
