package tensor

import (
	"math"

	"github.com/cistern-ml/cistern/device"
)

// gpuLaunch is one launch. It is reused.
type gpuLaunch struct {
	device.Launch
	suffix        string // of its kernel
	gemm          device.Gemm
	args          [512]uint64
	reads, writes [5 * maxParameters]device.Range
}

// newLaunch begins the launch of a kernel's kernelKey for dt over n elements, with 256 threads a block.
func (g *gpuKernels) newLaunch(name string, dt Dtype, n int) *gpuLaunch {
	l, _ := g.launches.Get().(*gpuLaunch)
	if l == nil {
		l = new(gpuLaunch)
	}
	l.Launch = device.Launch{Name: name, Grid: [3]uint32{blocks(n, 256), 1, 1}, Block: [3]uint32{256, 1, 1},
		Args: l.args[:0], Reads: l.reads[:0], Writes: l.writes[:0]}
	switch dt {
	case Float32:
		l.suffix = "_f32"
	case BFloat16:
		l.suffix = "_bf16"
	default:
		l.suffix = "_f64"
	}
	return l
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

func (l *gpuLaunch) word(v ...int) {
	for _, x := range v {
		l.Args = append(l.Args, uint64(x))
	}
}

// number is a parameter of the type in which the kernel computes.
func (l *gpuLaunch) number(v float64) {
	if l.suffix != "_f64" {
		l.Args = append(l.Args, uint64(math.Float32bits(float32(v))))
	} else {
		l.double(v)
	}
}

func (l *gpuLaunch) double(vs ...float64) {
	for _, v := range vs {
		l.Args = append(l.Args, math.Float64bits(v))
	}
}

// lists adds maxDims words for each list, of which the list's are the first.
func (l *gpuLaunch) lists(all ...[]int) {
	for _, v := range all {
		l.word(v...)
		l.pad(maxDims - len(v))
	}
}

// pad adds n words of 0.
func (l *gpuLaunch) pad(n int) {
	for range n {
		l.word(0)
	}
}

func (l *gpuLaunch) flag(v bool) {
	if v {
		l.word(1)
	} else {
		l.word(0)
	}
}

func (l *gpuLaunch) write(t *Tensor) {
	l.Args = append(l.Args, uint64(t.ptr()))
	l.Writes = append(l.Writes, t.memory())
}

func (l *gpuLaunch) read(t *Tensor) {
	l.Args = append(l.Args, uint64(t.ptr()))
	l.Reads = append(l.Reads, t.memory())
}

// update is for memory that the kernel reads and writes.
func (l *gpuLaunch) update(t *Tensor) {
	l.read(t)
	l.Writes = append(l.Writes, t.memory())
}

// readIf, writeIf and updateIf are for operands that may be nil: the kernel gets a null pointer.
func (l *gpuLaunch) readIf(t *Tensor) {
	if t == nil {
		l.word(0)
	} else {
		l.read(t)
	}
}

func (l *gpuLaunch) writeIf(t *Tensor) {
	if t == nil {
		l.word(0)
	} else {
		l.write(t)
	}
}

func (l *gpuLaunch) updateIf(t *Tensor) {
	if t == nil {
		l.word(0)
	} else {
		l.update(t)
	}
}

// readRange and writeRange are for memory that is not a whole tensor's. The kernel gets a null pointer for the zero Range.
func (l *gpuLaunch) readRange(r device.Range) {
	l.Args = append(l.Args, uint64(r.Ptr))
	if r.Bytes > 0 {
		l.Reads = append(l.Reads, r)
	}
}

func (l *gpuLaunch) writeRange(r device.Range) {
	l.Args = append(l.Args, uint64(r.Ptr))
	if r.Bytes > 0 {
		l.Writes = append(l.Writes, r)
	}
}

// fault is the word in which a kernel notes an index or a label that is not there.
func (l *gpuLaunch) fault(fault *storage) {
	r := device.Range{Ptr: fault.block.Ptr(), Bytes: faultBytes}
	l.readRange(r)
	l.Writes = append(l.Writes, r)
}
