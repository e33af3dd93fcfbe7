package gpuop

import (
	"math"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/internal/backend"
)

// launch is one launch: its arguments in the order of the kernel's. It stays with the call, and is begun anew for each launch.
type launch struct {
	device.Launch
	b             *Backend
	c             *backend.Call
	dtype         backend.Dtype // of the kernel, and of its numbers
	gemm          device.Gemm
	args          [512]uint64
	reads, writes [5 * maxParameters]device.Range
}

// begin begins a launch over n elements, with 256 threads a block.
func (b *Backend) begin(c *backend.Call, name string, n int) *launch {
	l, _ := c.Scratch.(*launch)
	if l == nil {
		l = new(launch)
		c.Scratch = l
	}
	l.b, l.c, l.dtype = b, c, c.Dtype
	l.again(name, n)
	return l
}

// again begins the next launch of a call.
func (l *launch) again(name string, n int) {
	l.Launch = device.Launch{Name: name, Grid: [3]uint32{blocks(n, 256), 1, 1}, Block: [3]uint32{256, 1, 1},
		Args: l.args[:0], Reads: l.reads[:0], Writes: l.writes[:0]}
}

// each makes it a launch over n elements, with 256 threads a block.
func (l *launch) each(n int) { l.Grid[0] = blocks(n, 256) }

// run queues the launch of a kernel for the launch's dtype.
func (l *launch) run(n name) error { return l.runAs(n, suffix(l.dtype)) }

func (l *launch) runAs(n name, s suffix) (err error) {
	if l.Kernel, err = l.b.kernel(n, s); err != nil {
		return err
	}
	return l.b.stream.Launch(&l.Launch)
}

// maxBlocks is enough to fill any GPU several times; kernels stride over what is more.
const maxBlocks = 1 << 12

// blocks are enough for n elements, so many of them for each.
func blocks(n, each int) uint32 { return uint32(min(max((n+each-1)/each, 1), maxBlocks)) }

// threads are enough for n elements of a block, four or more for each: a power of two from 32 to most.
func threads(n, most int) uint32 {
	t := 32
	for t < most && 4*t < n {
		t *= 2
	}
	return uint32(t)
}

// maxGridY is the most blocks that a grid has in its second dimension; kernels stride over what is more.
const maxGridY = 1<<16 - 1

// maxDims is the number of dimensions that kernels take, after those that walk alike were merged.
const maxDims = 8

// arg is an operand of the call.
func (l *launch) arg(i int) *backend.Ref { return &l.c.Args[i] }

// operands adds operands of the call, each with its role; a null pointer for one that is absent.
func (l *launch) operands(which ...int) {
	for _, i := range which {
		l.operand(&l.c.Args[i], l.c.Role(i))
	}
}

// all adds all operands of the call.
func (l *launch) all() {
	for i := range l.c.Args[:l.c.N] {
		l.operand(&l.c.Args[i], l.c.Role(i))
	}
}

func (l *launch) operand(r *backend.Ref, role backend.Role) { l.memory(r.Range(), role) }

// memory adds memory; a null pointer for none.
func (l *launch) memory(r device.Range, role backend.Role) {
	l.Args = append(l.Args, uint64(r.Ptr))
	l.names(r, role)
}

// names says what the kernel does with memory.
func (l *launch) names(r device.Range, role backend.Role) {
	if r.Bytes == 0 {
		return
	}
	if role&backend.Read != 0 {
		l.Reads = append(l.Reads, r)
	}
	if role&backend.Write != 0 {
		l.Writes = append(l.Writes, r)
	}
}

// from adds an operand from an element on.
func (l *launch) from(i, element int) {
	r := l.arg(i)
	l.Args = append(l.Args, uint64(r.Ptr)+uint64(element*r.Dtype.Size()))
	l.names(r.Range(), l.c.Role(i))
}

func (l *launch) word(v ...int) {
	for _, x := range v {
		l.Args = append(l.Args, uint64(x))
	}
}

// number is a parameter of the type in which the kernel computes.
func (l *launch) number(vs ...float64) {
	for _, v := range vs {
		l.Args = append(l.Args, l.dtype.Computes().Bits(v))
	}
}

func (l *launch) double(vs ...float64) {
	for _, v := range vs {
		l.Args = append(l.Args, math.Float64bits(v))
	}
}

// lists adds maxDims words for each list, of which the list's are the first.
func (l *launch) lists(all ...[]int) {
	for _, v := range all {
		l.word(v...)
		l.pad(maxDims - len(v))
	}
}

// pad adds n words of 0.
func (l *launch) pad(n int) {
	for range n {
		l.word(0)
	}
}

func (l *launch) flag(all ...bool) {
	for _, v := range all {
		if v {
			l.word(1)
		} else {
			l.word(0)
		}
	}
}

// eight is for a launch over n elements, of which a thread takes eight at a time if they are narrow.
func (l *launch) eight(n int) {
	if l.dtype.Wide() != backend.NoDtype {
		l.Grid[0] = blocks(n, 8*256)
	}
}
