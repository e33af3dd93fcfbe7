package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// The kernels of order.cu that follow the first one of a sort.
var (
	mergeRanked = named("merge_ranked")
	takeRanked  = named("take_ranked")
)

func orders(t *entries) {
	t.run("sort_rows", sortRows, backend.Sort)
	t.run("cumsum", cumSum, backend.CumSum)
}

// rankedBytes is the size of an element with its rank.
const rankedBytes = 16

// sortRows sorts runs of rows in shared memory, then merges pairs of runs between two buffers until
// each row is one run. Finally it copies the first elements of each row to the result.
func sortRows(ctx context.Context, l *launcher, k name) error {
	o := backend.ParamsOf[plan.Order](l.c.Params())
	n := l.arg(1).Count()
	buffers := 1
	if o.Cols > sortedRun {
		buffers = 2
	}
	return l.inScratch(ctx, buffers*n*rankedBytes, func(room device.Range) error {
		sorted, other := room, room
		sorted.Bytes /= int64(buffers)
		other.Bytes = sorted.Bytes
		other.Ptr += device.Ptr(int64(buffers-1) * sorted.Bytes)
		runs := (o.Cols + sortedRun - 1) / sortedRun
		l.Blocks(n/o.Cols*runs, threads(2*min(o.Cols, sortedRun), sortedRun/2), 1)
		l.Memory(sorted, backend.Write).operands(1).Flag(o.Descending).Word(n/o.Cols, o.Cols, o.Inner)
		if err := l.run(k); err != nil {
			return err
		}
		for width := sortedRun; width < o.Cols; width *= 2 {
			l.again("merge sorted").Each(n).Memory(other, backend.Write).Memory(sorted, backend.Read).Word(n, o.Cols, width)
			if err := l.run(mergeRanked); err != nil {
				return err
			}
			sorted, other = other, sorted
		}
		kept := l.arg(0).Count()
		l.again("take sorted").Each(kept).operands(0).Memory(sorted, backend.Read).Word(kept, o.Keep, o.Cols, o.Inner)
		return l.run(takeRanked)
	})
}

func cumSum(_ context.Context, l *launcher, k name) error {
	r := backend.ParamsOf[plan.Rows](l.c.Params())
	n := l.arg(1).Count() / r.Cols
	return l.rows(n, r).all().Flag(l.c.C[0] != 0).Word(n, r.Cols, r.Inner).run(k)
}
