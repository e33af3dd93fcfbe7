package gpuop

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/launch"
)

// launcher builds the launches of a call: [launcher.again] resets it for the next launch. Its
// methods return the launcher, so that calls can be chained.
type launcher struct {
	launch.Builder[launcher]
	b             *Backend
	c             *backend.Call
	err           error // the first error, which run returns
	gemm          device.Gemm
	args          [512]uint64
	reads, writes [5 * maxParameters]device.Range
}

// begin returns the call's launcher, set to a launch of one block of 256 threads.
func (b *Backend) begin(c *backend.Call) *launcher {
	l, _ := c.Scratch.(*launcher)
	if l == nil {
		l = new(launcher)
		c.Scratch = l
	}
	l.Outer, l.b, l.c, l.Dtype, l.err = l, b, c, c.Dtype, nil
	return l.again(c.Op.Name())
}

// again resets the launcher for the next launch of the call.
func (l *launcher) again(name string) *launcher {
	l.Launch = device.Launch{Name: name, Args: l.args[:0], Reads: l.reads[:0], Writes: l.writes[:0]}
	return l.Blocks(1, 256, 1)
}

// elements sets the grid for the elements of the result, and adds all operands and that count.
func (l *launcher) elements() *launcher {
	n := l.arg(0).Count()
	return l.Each(n).all().Word(n)
}

// run queues the launch of a kernel for the launch's dtype.
func (l *launcher) run(n name) error {
	if l.err == nil {
		l.Kernel, l.err = l.b.kernel(n, l.Dtype)
	}
	if l.err == nil {
		l.err = l.b.stream.Launch(&l.Launch)
	}
	return l.err
}

// threads returns the number of threads of a block for n elements, at least four per thread: a
// power of two from 32 to most.
func threads(n, most int) int {
	t := 32
	for t < most && 4*t < n {
		t *= 2
	}
	return t
}

// fourEach is a number of blocks: four for each multiprocessor of an H100 or an H200.
const fourEach = 4 * 132

// maxGridY is the largest number of blocks in a grid's second dimension. Kernels stride over more.
const maxGridY = 1<<16 - 1

// arg returns operand i of the call.
func (l *launcher) arg(i int) *backend.Ref { return &l.c.Args[i] }

// operands adds operands of the call, each with its role. An absent operand is a null pointer.
func (l *launcher) operands(which ...int) *launcher {
	for _, i := range which {
		l.Memory(l.arg(i).Range(), l.c.Role(i))
	}
	return l
}

// optional adds operand i, or a null pointer if has is false.
func (l *launcher) optional(has bool, i int) *launcher {
	if has {
		return l.operands(i)
	}
	return l.Word(0)
}

// all adds all operands of the call.
func (l *launcher) all() *launcher {
	for i := range l.c.N {
		l.operands(i)
	}
	return l
}

// from adds operand i, starting at an element.
func (l *launcher) from(i, element int) *launcher {
	return l.Within(l.arg(i).Range(), element*l.arg(i).Dtype.Size(), l.c.Role(i))
}

// dims adds the dimensions of a loop, with the strides of each operand.
func (l *launcher) dims(what string, dims []int, strides ...[]int) *launcher {
	if len(dims) > launch.MaxDims {
		return l.tooMany(what, len(dims))
	}
	return l.Dims(dims, strides...)
}

// tooMany makes the launch fail.
func (l *launcher) tooMany(what string, dims int) *launcher {
	l.err = fmt.Errorf("%w: %s has %d different dimensions; kernels take %d", backend.ErrUnsupported, what, dims, launch.MaxDims)
	return l
}
