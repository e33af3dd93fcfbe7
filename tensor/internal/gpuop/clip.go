package gpuop

import (
	"context"
	"math"

	"github.com/cistern-ml/cistern/tensor/internal/backend"
	"github.com/cistern-ml/cistern/tensor/internal/plan"
)

func clips(t *entries) {
	t.run("norm_parts", partNorms, backend.Norm)
	t.run("norm_total", total, backend.NormOfNorms)
	t.run("clip", clip, backend.Clip)
	t.run("bound", clip, backend.Bound)
}

// maxClipped is the number of tensors that one launch takes: as many as a kernel's 4 KiB of arguments.
const maxClipped = 192

// The sorts of norms of clip.cu.
const (
	anyNorm = iota
	oneNorm
	twoNorm
	countNorm
	maxNorm
	minNorm
)

func sortOf(p float64) int {
	switch {
	case p == 1:
		return oneNorm
	case p == 2:
		return twoNorm
	case p == 0:
		return countNorm
	case math.IsInf(p, 1):
		return maxNorm
	case math.IsInf(p, -1):
		return minNorm
	}
	return anyNorm
}

// clipped launches a kernel for each run of tensors that one launch takes; begin adds the arguments before those of the tensors.
func (l *launch) clipped(k name, gridX int, begin func(part *backend.List)) error {
	all := l.c.List
	for i := 0; i < all.Len(); i += maxClipped {
		part := all.Slice(i, min(i+maxClipped, all.Len()))
		l.again(l.Name, 0)
		l.Grid = [3]uint32{uint32(gridX), uint32(part.Len()), 1}
		begin(&part)
		for j := range part.Len() {
			t := &part.Item(j)[0]
			l.operand(t, l.c.Op.ListRoles()[0])
			l.word(t.Count())
		}
		if err := l.run(k); err != nil {
			return err
		}
	}
	return nil
}

// partNorms leaves the norms of parts of tensors, whose places follow each other.
func partNorms(_ context.Context, l *launch, k name) error {
	each := l.c.List.Item(0)[1].Count()
	return l.clipped(k, each, func(part *backend.List) {
		first := part.Item(0)[1].Range()
		first.Bytes *= int64(part.Len())
		l.memory(first, backend.Write)
		l.word(sortOf(l.c.C[0]))
		l.double(l.c.C[0])
	})
}

func total(_ context.Context, l *launch, k name) error {
	each := backend.ParamsOf[plan.NormTotal](l.c.Params()).Each
	l.all()
	l.word((l.arg(1).Count()-1)/each, each, sortOf(l.c.C[0]))
	l.double(l.c.C[0])
	return l.run(k)
}

// clip multiplies tensors, or bounds their elements.
func clip(_ context.Context, l *launch, k name) error {
	return l.clipped(k, int(blocks(largestOf(&l.c.List), 256*4)), func(*backend.List) {
		l.all()
		l.double(l.c.C[0])
	})
}
