package gpuop

import (
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/internal/backend"
)

// launch collects the arguments of one launch, in the order of the kernel's. A call has one, which
// [launch.again] clears for the next launch. Its methods return it, so that calls can be chained.
type launch struct {
	device.Launch
	b             *Backend
	c             *backend.Call
	dtype         backend.Dtype // of the kernel, and of its numbers
	err           error         // the first one, which run returns
	gemm          device.Gemm
	args          [512]uint64
	reads, writes [5 * maxParameters]device.Range
}

// begin begins a launch of one block of 256 threads.
func (b *Backend) begin(c *backend.Call) *launch {
	l, _ := c.Scratch.(*launch)
	if l == nil {
		l = new(launch)
		c.Scratch = l
	}
	l.b, l.c, l.dtype, l.err = b, c, c.Dtype, nil
	return l.again(c.Op.Name())
}

// again begins the next launch of a call.
func (l *launch) again(name string) *launch {
	l.Launch = device.Launch{Name: name, Args: l.args[:0], Reads: l.reads[:0], Writes: l.writes[:0]}
	return l.grid(1, 256, 1)
}

// grid makes it a launch of n blocks, each of x by y threads.
func (l *launch) grid(n, x, y int) *launch {
	l.Grid, l.Block = [3]uint32{blocks(n, 1), 1, 1}, [3]uint32{uint32(x), uint32(y), 1}
	return l
}

// each makes it a launch over n elements, with 256 threads a block.
func (l *launch) each(n int) *launch {
	l.Grid[0] = blocks(n, 256)
	return l
}

// elements makes it a launch over the elements of the result: all operands, and how many there are.
func (l *launch) elements() *launch {
	n := l.arg(0).Count()
	return l.each(n).all().word(n)
}

// run queues the launch of a kernel for the launch's dtype.
func (l *launch) run(n name) error {
	if l.err == nil {
		l.Kernel, l.err = l.b.kernel(n, l.dtype)
	}
	if l.err == nil {
		l.err = l.b.stream.Launch(&l.Launch)
	}
	return l.err
}

// maxBlocks is enough to fill any GPU several times; kernels stride over what is more.
const maxBlocks = 1 << 12

// blocks are enough for n elements, so many of them for each.
func blocks(n, each int) uint32 { return uint32(min(max((n+each-1)/each, 1), maxBlocks)) }

// threads are enough for n elements of a block, four or more for each: a power of two from 32 to
// most.
func threads(n, most int) int {
	t := 32
	for t < most && 4*t < n {
		t *= 2
	}
	return t
}

// maxGridY is the most blocks that a grid has in its second dimension; kernels stride over what is
// more.
const maxGridY = 1<<16 - 1

// maxDims is the number of dimensions that kernels take, after those that walk alike were merged.
const maxDims = 8

// arg is an operand of the call.
func (l *launch) arg(i int) *backend.Ref { return &l.c.Args[i] }

// operands adds operands of the call, each with its role; a null pointer for one that is absent.
func (l *launch) operands(which ...int) *launch {
	for _, i := range which {
		l.memory(l.arg(i).Range(), l.c.Role(i))
	}
	return l
}

// optional adds an operand, or a null pointer where the operation has none.
func (l *launch) optional(has bool, i int) *launch {
	if has {
		return l.operands(i)
	}
	return l.word(0)
}

// all adds all operands of the call.
func (l *launch) all() *launch {
	for i := range l.c.N {
		l.operands(i)
	}
	return l
}

// memory adds a pointer to r, which the kernel uses as role says: null for the zero Range.
func (l *launch) memory(r device.Range, role backend.Role) *launch {
	return l.within(r, 0, role)
}

// within adds memory from a byte on.
func (l *launch) within(r device.Range, at int, role backend.Role) *launch {
	l.Args = append(l.Args, uint64(r.Ptr)+uint64(at))
	if r.Bytes > 0 && role&backend.Read != 0 {
		l.Reads = append(l.Reads, r)
	}
	if r.Bytes > 0 && role&backend.Write != 0 {
		l.Writes = append(l.Writes, r)
	}
	return l
}

// from adds an operand from an element on.
func (l *launch) from(i, element int) *launch {
	return l.within(l.arg(i).Range(), element*l.arg(i).Dtype.Size(), l.c.Role(i))
}

func (l *launch) word(v ...int) *launch {
	for _, x := range v {
		l.Args = append(l.Args, uint64(x))
	}
	return l
}

func (l *launch) bits(v ...uint64) *launch {
	l.Args = append(l.Args, v...)
	return l
}

// number is a parameter of the type in which the kernel computes.
func (l *launch) number(vs ...float64) *launch {
	for _, v := range vs {
		l.bits(l.dtype.Computes().Bits(v))
	}
	return l
}

func (l *launch) double(vs ...float64) *launch {
	for _, v := range vs {
		l.bits(math.Float64bits(v))
	}
	return l
}

// dims adds the number of dimensions, and maxDims words for each list: one for each dimension.
func (l *launch) dims(what string, dims []int, strides ...[]int) *launch {
	if len(dims) > maxDims {
		return l.tooMany(what, len(dims))
	}
	l.word(len(dims)).list(dims)
	for _, s := range strides {
		l.list(s)
	}
	return l
}

// tooMany makes it a launch that fails.
func (l *launch) tooMany(what string, dims int) *launch {
	l.err = fmt.Errorf("%w: %s has %d different dimensions; kernels take %d", backend.ErrUnsupported, what, dims, maxDims)
	return l
}

// list adds maxDims words, of which the list's are the first.
func (l *launch) list(v []int) *launch { return l.word(v...).pad(maxDims - len(v)) }

// pad adds n words of 0.
func (l *launch) pad(n int) *launch {
	l.Args = append(l.Args, make([]uint64, n)...)
	return l
}

func (l *launch) flag(all ...bool) *launch {
	for _, v := range all {
		if v {
			l.word(1)
		} else {
			l.word(0)
		}
	}
	return l
}
