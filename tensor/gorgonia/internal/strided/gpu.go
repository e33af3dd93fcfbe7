package strided

import (
	"fmt"
	"math"
	"sync"

	"github.com/cistern-ml/cistern/device"
)

// image is what nvcc makes of strided.cu for compute capability 7.0, which the driver compiles for any later GPU.
// It is empty unless the program is built with the tag cuda or emulator.
var image []byte

// gpu is the kernels of a device that runs compiled ones. Each call is one launch.
type gpu struct {
	module device.Module

	mu      sync.Mutex
	kernels map[string]any
}

func newGPU(dev device.ModuleLoader) (*gpu, error) {
	if len(image) == 0 {
		return nil, fmt.Errorf("%w: this program has no kernels for GPUs: build it with the tag cuda", device.ErrUnsupported)
	}
	m, err := dev.LoadModule(image)
	if err != nil {
		return nil, err
	}
	return &gpu{module: m, kernels: make(map[string]any)}, nil
}

func (g *gpu) kernel(name string) (any, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if k := g.kernels[name]; k != nil {
		return k, nil
	}
	k, err := g.module.Kernel(name)
	if err == nil {
		g.kernels[name] = k
	}
	return k, err
}

// gpuLaunch is one launch: arguments in the order of the kernel's.
type gpuLaunch struct {
	device.Launch
	t Type
}

// threads is the size of a block; maxBlocks is enough to fill any GPU several times: kernels stride over what is more.
const (
	threads   = 256
	maxBlocks = 1 << 12
)

func newLaunch(name string, t Type, blocks int) *gpuLaunch {
	grid := uint32(min(max(blocks, 1), maxBlocks))
	return &gpuLaunch{device.Launch{Name: name, Grid: [3]uint32{grid, 1, 1}, Block: [3]uint32{threads, 1, 1}}, t}
}

func (l *gpuLaunch) word(v ...int) {
	for _, x := range v {
		l.Args = append(l.Args, uint64(x))
	}
}

func (l *gpuLaunch) flag(v bool) {
	if v {
		l.word(1)
	} else {
		l.word(0)
	}
}

// number is a parameter of the kernel's type.
func (l *gpuLaunch) number(v float64) {
	if l.t == Float32 {
		l.Args = append(l.Args, uint64(math.Float32bits(float32(v))))
	} else {
		l.Args = append(l.Args, math.Float64bits(v))
	}
}

func (l *gpuLaunch) read(a Array) {
	l.Args = append(l.Args, uint64(a.Ptr))
	l.Reads = append(l.Reads, a.Span())
}

func (l *gpuLaunch) write(r device.Range) {
	l.Args = append(l.Args, uint64(r.Ptr))
	l.Writes = append(l.Writes, r)
}

// result is the destination, which is read too if something is added to it.
func (l *gpuLaunch) result(dst Array, increment bool) {
	l.write(dst.Span())
	if increment {
		l.Reads = append(l.Reads, dst.Span())
	}
}

// operand is an array, or a null pointer for a number.
func (l *gpuLaunch) operand(o Operand) {
	if o.IsNumber {
		l.word(0)
	} else {
		l.read(o.Array)
	}
}

// list is MaxDims numbers, of which v are the first.
func (l *gpuLaunch) list(v []int) {
	l.word(v...)
	for range MaxDims - len(v) {
		l.word(0)
	}
}

// plan is the kernels' struct plan, their last parameter.
func (l *gpuLaunch) plan(p plan) {
	l.word(len(p.dims))
	l.list(p.dims)
	for _, s := range p.strides {
		l.list(s)
	}
}

func (g *gpu) run(s device.Stream, l *gpuLaunch, kernel string) (err error) {
	if l.Kernel, err = g.kernel(kernel); err != nil {
		return err
	}
	return s.Launch(&l.Launch)
}

func (t Type) String() string { return [...]string{"f32", "f64"}[t] }

func blocks(n int) int { return (n + threads - 1) / threads }

func (g *gpu) copy(s device.Stream, p plan, dst, x Array) error {
	l := newLaunch("copy", 0, blocks(dst.Len()))
	l.write(dst.Span())
	l.read(x)
	l.word(dst.Len())
	l.plan(p)
	return g.run(s, l, fmt.Sprint("copy_", x.Size))
}

func (g *gpu) zip(s device.Stream, op Binary, t Type, p plan, dst Array, a, b Operand, increment bool) error {
	l := newLaunch("zip", t, blocks(dst.Len()))
	name := "zip_"
	bytes := op.Compares() && dst.Size == 1
	if bytes {
		name, increment = "compare_", false
	}
	l.result(dst, increment)
	l.operand(a)
	l.operand(b)
	number := b.Number
	if a.IsNumber {
		number = a.Number
	}
	l.number(number)
	l.word(dst.Len(), int(op))
	if !bytes {
		l.flag(increment)
	}
	l.plan(p)
	return g.run(s, l, name+t.String())
}

func (g *gpu) mapped(s device.Stream, op Unary, t Type, p plan, dst, x Array, lo, hi float64, increment bool) error {
	l := newLaunch("map", t, blocks(dst.Len()))
	l.result(dst, increment)
	l.read(x)
	l.number(lo)
	l.number(hi)
	l.word(dst.Len(), int(op))
	l.flag(increment)
	l.plan(p)
	return g.run(s, l, "map_"+t.String())
}

func (g *gpu) fold(s device.Stream, least, places bool, t Type, dst device.Ptr, x Array, w walk) error {
	outputs := product(w.kept.dims)
	l := newLaunch("fold", t, outputs)
	name, size := "fold_", x.Size
	if places {
		name, size = "arg_", 8
	}
	l.write(device.Range{Ptr: dst, Bytes: int64(outputs) * int64(size)})
	l.read(x)
	l.word(outputs, product(w.folded.dims))
	l.flag(least)
	for _, p := range []plan{w.kept, w.folded} {
		l.word(len(p.dims))
		l.list(p.dims)
		l.list(p.strides[0])
	}
	return g.run(s, l, name+t.String())
}
