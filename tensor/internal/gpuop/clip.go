package gpuop

import (
	"context"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/launch"
)

func clips(t *entries) {
	t.run("norm_parts", partNorms, backend.Norm)
	t.run("norm_total", total, backend.NormOfNorms)
	t.run("clip", clip, backend.Clip)
	t.run("bound", clip, backend.Bound)
}

// maxClipped is the largest number of tensors of one launch. A kernel's arguments are limited to 4
// KiB.
const maxClipped = 192

// sortOf returns the code of a norm in clip.cu. The code is 0 for norms without a special case.
func sortOf(p float64) int { return 1 + slices.Index([]float64{1, 2, 0, math.Inf(1), math.Inf(-1)}, p) }

// clipped launches k once for each run of at most maxClipped tensors. begin adds the arguments that
// precede those of the tensors.
func (l *launcher) clipped(k name, gridX int, begin func(part *backend.List)) error {
	all := l.c.List
	for i := 0; i < all.Len(); i += maxClipped {
		part := all.Slice(i, min(i+maxClipped, all.Len()))
		l.again(l.Name).Blocks(gridX, 256, 1).Grid[1] = uint32(part.Len())
		begin(&part)
		for j := range part.Len() {
			t := &part.Item(j)[0]
			l.Memory(t.Range(), l.c.Op.ListRoles()[0]).Word(t.Count())
		}
		if err := l.run(k); err != nil {
			return err
		}
	}
	return nil
}

// partNorms computes the norms of parts of the tensors. Their slots are consecutive in memory.
func partNorms(_ context.Context, l *launcher, k name) error {
	each := l.c.List.Item(0)[1].Count()
	return l.clipped(k, each, func(part *backend.List) {
		first := part.Item(0)[1].Range()
		first.Bytes *= int64(part.Len())
		l.Memory(first, backend.Write).Word(sortOf(l.c.C[0])).Double(l.c.C[0])
	})
}

func total(_ context.Context, l *launcher, k name) error {
	each := backend.ParamsOf[plan.NormTotal](l.c.Params()).Each
	return l.all().Word((l.arg(1).Count()-1)/each, each, sortOf(l.c.C[0])).Double(l.c.C[0]).run(k)
}

// clip scales tensors, or bounds their elements.
func clip(_ context.Context, l *launcher, k name) error {
	return l.clipped(k, int(launch.GridSize(largestOf(&l.c.List), 256*4)), func(*backend.List) { l.all().Double(l.c.C[0]) })
}

// largestOf returns the number of elements of the largest first operand in the list.
func largestOf(l *backend.List) int {
	largest := 0
	for i := range l.Len() {
		largest = max(largest, l.Item(i)[0].Count())
	}
	return largest
}
