package launch

import (
	"math"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
)

// Builder collects the arguments of one launch, in the order of the kernel's parameters. L is the
// struct that embeds the Builder. Methods return Outer, so that calls of both can be chained.
type Builder[L any] struct {
	device.Launch
	Outer *L
	Dtype backend.Dtype // of the kernel, and of the parameters that Number adds
}

// maxBlocks fills any GPU several times. Kernels stride over more.
const maxBlocks = 1 << 12

// GridSize returns the number of blocks for n elements with each elements per block, at most
// maxBlocks.
func GridSize(n, each int) uint32 { return uint32(min(max((n+each-1)/each, 1), maxBlocks)) }

// Blocks sets a grid of n blocks, each of x by y threads.
func (b *Builder[L]) Blocks(n, x, y int) *L {
	b.Grid, b.Block = [3]uint32{GridSize(n, 1), 1, 1}, [3]uint32{uint32(x), uint32(y), 1}
	return b.Outer
}

// Each sets a grid for n elements, one per thread. The caller sets the block to 256 threads.
func (b *Builder[L]) Each(n int) *L {
	b.Grid[0] = GridSize(n, 256)
	return b.Outer
}

// Memory adds a pointer to r, which the kernel uses according to role. The pointer is null for the
// zero Range.
func (b *Builder[L]) Memory(r device.Range, role backend.Role) *L { return b.Within(r, 0, role) }

// Within adds a pointer to byte at of r.
func (b *Builder[L]) Within(r device.Range, at int, role backend.Role) *L {
	b.Args = append(b.Args, uint64(r.Ptr)+uint64(at))
	if r.Bytes > 0 && role&backend.Read != 0 {
		b.Reads = append(b.Reads, r)
	}
	if r.Bytes > 0 && role&backend.Write != 0 {
		b.Writes = append(b.Writes, r)
	}
	return b.Outer
}

// Word adds integers.
func (b *Builder[L]) Word(v ...int) *L {
	for _, x := range v {
		b.Args = append(b.Args, uint64(x))
	}
	return b.Outer
}

// Bits adds words unchanged.
func (b *Builder[L]) Bits(v ...uint64) *L {
	b.Args = append(b.Args, v...)
	return b.Outer
}

// Number adds parameters of the type in which the kernel computes.
func (b *Builder[L]) Number(vs ...float64) *L {
	for _, v := range vs {
		b.Bits(b.Dtype.Computes().Bits(v))
	}
	return b.Outer
}

// Double adds parameters of type double.
func (b *Builder[L]) Double(vs ...float64) *L {
	for _, v := range vs {
		b.Bits(math.Float64bits(v))
	}
	return b.Outer
}

// Flag adds a word for each value: 1 for true, 0 for false.
func (b *Builder[L]) Flag(all ...bool) *L {
	for _, v := range all {
		if v {
			b.Word(1)
		} else {
			b.Word(0)
		}
	}
	return b.Outer
}

// MaxDims is the largest number of dimensions that kernels take, after dimensions with matching
// strides were merged.
const MaxDims = 8

// Dims adds the number of dimensions, which must be at most MaxDims. Then it adds MaxDims words for
// each list, one per dimension.
func (b *Builder[L]) Dims(dims []int, strides ...[]int) *L {
	b.Word(len(dims))
	b.list(dims)
	for _, s := range strides {
		b.list(s)
	}
	return b.Outer
}

// list adds MaxDims words: those of v, then zeros.
func (b *Builder[L]) list(v []int) {
	b.Word(v...)
	b.Pad(MaxDims - len(v))
}

// Pad adds n words of 0.
func (b *Builder[L]) Pad(n int) *L {
	b.Args = append(b.Args, make([]uint64, n)...)
	return b.Outer
}
