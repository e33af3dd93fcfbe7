package gpuop

import (
	"context"
	"strings"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/launch"
)

// gradEditions are the kernels for narrow gradients of wide parameters.
var gradEditions [backend.Ops]name

func steps(t *entries) {
	for _, op := range backend.Step.All() {
		rule := strings.TrimSuffix(op.Name(), " step")
		gradEditions[op] = named(rule + "_grad")
		t.run(rule, step, op)
		t[op].can = func(_ *Backend, c *backend.Call) bool { return stepKernel(c) != 0 }
	}
}

// stepKernel is the kernel of a step, whose gradients may be narrow where the parameters are not;
// 0: there is none. The dtype of its name is that of the gradients.
func stepKernel(c *backend.Call) name {
	k, grad := table[c.Op].kernel, c.List.Refs[1].Dtype
	switch {
	case !c.Mixed() && k.has(c.Dtype):
		return k
	case grad.Wide() == c.Dtype && gradEditions[c.Op].has(grad):
		return gradEditions[c.Op]
	}
	return 0
}

const (
	// maxParameters is the number that one launch of an optimiser takes: as many as a kernel's 4 KiB
	// of arguments.
	maxParameters = 48
	// together is how many elements a thread has in flight; it is the same in step.cu.
	together = 4
	// stepBlocks is the most blocks for one parameter: those of small ones have nothing to do.
	stepBlocks = 1 << 10
)

// step updates parameters, so many with each launch.
func step(_ context.Context, l *launcher, _ name) error {
	all, shared, k := l.c.List, l.c.Params(), stepKernel(l.c)
	if k != table[l.c.Op].kernel {
		l.Dtype = all.Refs[1].Dtype
	}
	for i := 0; i < all.Len(); i += maxParameters {
		part := all.Slice(i, min(i+maxParameters, all.Len()))
		if largest := largestOf(&part); largest > 0 {
			l.again(l.Name).Memory(part.Live.Range(), backend.Read).Bits(shared[:]...)
			l.Grid[0], l.Grid[1] = min(launch.GridSize((largest+together-1)/together, 256), stepBlocks), uint32(part.Len())
			for j := range part.Len() {
				item := part.Item(j)
				for n, role := range l.c.Op.ListRoles() {
					l.Memory(item[n].Range(), role)
				}
				if l.Word(item[0].Count()); part.Live.None() {
					l.Double(part.Own[j*part.Width:][:part.Width]...)
				} else {
					l.Pad(part.Width) // they are read from memory
				}
			}
			if err := l.run(k); err != nil {
				return err
			}
		}
	}
	return nil
}

// largestOf is the number of elements of the largest first operand of all items.
func largestOf(l *backend.List) int {
	largest := 0
	for i := range l.Len() {
		largest = max(largest, l.Item(i)[0].Count())
	}
	return largest
}
