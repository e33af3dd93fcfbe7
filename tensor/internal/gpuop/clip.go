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

// maxClipped is the number of tensors that one launch takes: as many as a kernel's 4 KiB of
// arguments.
const maxClipped = 192

// sortOf is the code of a norm in clip.cu: 0 for one that has no sort of its own.
func sortOf(p float64) int { return 1 + slices.Index([]float64{1, 2, 0, math.Inf(1), math.Inf(-1)}, p) }

// clipped launches a kernel for each run of tensors that one launch takes; begin adds the arguments
// before those of the tensors.
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

// partNorms leaves the norms of parts of tensors, whose places follow each other.
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

// clip multiplies tensors, or bounds their elements.
func clip(_ context.Context, l *launcher, k name) error {
	return l.clipped(k, int(launch.GridSize(largestOf(&l.c.List), 256*4)), func(*backend.List) { l.all().Double(l.c.C[0]) })
}
