package gpuop

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/cistern-ml/cistern/tensor/backend"
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
	// sharedNumbers is how many shared numbers a rule can have, as in step.cu.
	sharedNumbers = 7
	// blockElements is the number of elements that a block updates, as in step.cu.
	blockElements = 1 << 10
)

// step updates at most maxParameters parameters with each launch.
func step(_ context.Context, l *launcher, _ name) error {
	all, shared, k := l.c.List, l.c.Params(), stepKernel(l.c)
	if k != table[l.c.Op].kernel {
		l.Dtype = all.Refs[1].Dtype
	}
	for i := 0; i < all.Len(); i += maxParameters {
		part := all.Slice(i, min(i+maxParameters, all.Len()))
		first, blocks := stepBlocks(&part)
		switch {
		case blocks == 0:
			continue
		case blocks > math.MaxInt32:
			return fmt.Errorf("%w: %s of %d blocks: a grid has %d", backend.ErrUnsupported, l.Name, blocks, math.MaxInt32)
		}
		l.again(l.Name).Memory(part.Live.Range(), backend.Read).Bits(shared[:sharedNumbers]...).Bits(first[:]...)
		l.Grid[0] = uint32(blocks)
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
	return nil
}

// stepBlocks returns the first block of each parameter, two in a word, and the number of all
// blocks. After the last parameter each is the greatest number.
func stepBlocks(l *backend.List) (first [maxParameters / 2]uint64, blocks int) {
	for i := range maxParameters {
		at := uint64(math.MaxUint32)
		if i < l.Len() {
			at = uint64(uint32(blocks))
			blocks += (l.Item(i)[0].Count() + blockElements - 1) / blockElements
		}
		first[i/2] |= at << (i % 2 * 32)
	}
	return first, blocks
}
