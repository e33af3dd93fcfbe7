package gpuop

import (
	"context"
	"strings"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/launch"
)

// gradEditions are the kernels for narrow gradients of parameters of the upcast dtype.
var gradEditions [backend.Ops]name

func steps(t *entries) {
	for _, op := range backend.Step.All() {
		rule := strings.TrimSuffix(op.Name(), " step")
		gradEditions[op] = named(rule + "_grad")
		t.run(rule, step, op)
		t[op].can = func(_ *Backend, c *backend.Call) bool { return stepKernel(c) != 0 }
	}
}

// stepKernel returns the kernel of a step, or 0 if there is none. The gradients may be narrow even
// if the parameters are not. The dtype in the kernel's name is that of the gradients.
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
	// maxParameters is the largest number of parameters of one launch. A kernel's arguments are
	// limited to 4 KiB.
	maxParameters = 48
	// together is the number of elements that a thread has in flight, as in step.cu.
	together = 4
	// stepBlocks is the largest number of blocks per parameter. The grid is sized for the largest
	// parameter, so blocks of smaller ones may have no elements.
	stepBlocks = 1 << 10
)

// step updates at most maxParameters parameters with each launch.
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
					// The kernel reads them from memory.
					l.Pad(part.Width)
				}
			}
			if err := l.run(k); err != nil {
				return err
			}
		}
	}
	return nil
}

// largestOf returns the number of elements of the largest first operand in the list.
func largestOf(l *backend.List) int {
	largest := 0
	for i := range l.Len() {
		largest = max(largest, l.Item(i)[0].Count())
	}
	return largest
}
