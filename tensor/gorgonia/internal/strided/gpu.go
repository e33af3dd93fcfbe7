package strided

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/launch"
	"github.com/cistern-ml/cistern/tensor/internal/ptx"
)

// image is the compiled strided.cu. It is empty unless the program is built with the tag cuda or
// emulator.
var image = &ptx.Image{Name: "strided"}

// gpu queues the kernels of a device that runs compiled code. Each call is one launch.
type gpu struct {
	modules *launch.Modules

	copies                               [17]launch.Handle // by the size of an element
	zips, comparisons, maps, folds, args [backend.Dtypes]launch.Handle
}

func newGPU(dev device.ModuleLoader) (*gpu, error) {
	modules, err := launch.NewModules(dev)
	if err != nil {
		return nil, err
	}
	g := &gpu{modules: modules}
	_, err = g.modules.Kernel(&g.copies[1], image, "copy_1")
	return g, err
}

// gpuLaunch is one launch.
type gpuLaunch struct {
	launch.Builder[gpuLaunch]
}

func newLaunch(name string, t Type, n int) *gpuLaunch {
	l := &gpuLaunch{}
	l.Outer, l.Name, l.Dtype = l, name, t
	return l.Blocks(1, 256, 1).Each(n)
}

func (g *gpu) run(s device.Stream, l *gpuLaunch, kernel *launch.Handle, name string) (err error) {
	if l.Kernel, err = g.modules.Kernel(kernel, image, name); err != nil {
		return err
	}
	return s.Launch(&l.Launch)
}

func (l *gpuLaunch) read(a Array) *gpuLaunch { return l.Memory(a.Span(), backend.Read) }

// result adds the destination. The kernel also reads it if increment is set.
func (l *gpuLaunch) result(dst Array, increment bool) *gpuLaunch {
	if increment {
		return l.Memory(dst.Span(), backend.Update)
	}
	return l.Memory(dst.Span(), backend.Write)
}

// operand adds an array, or a null pointer for a number.
func (l *gpuLaunch) operand(o Operand) *gpuLaunch {
	if o.IsNumber {
		return l.Word(0)
	}
	return l.read(o.Array)
}

// plan adds the kernels' struct plan, their last parameter.
func (l *gpuLaunch) plan(p plan) *gpuLaunch { return l.Dims(p.dims, p.strides[:]...) }

func (g *gpu) copy(s device.Stream, p plan, dst, x Array) error {
	l := newLaunch("copy", backend.NoDtype, dst.Len()).result(dst, false).read(x).Word(dst.Len()).plan(p)
	return g.run(s, l, &g.copies[x.Size], fmt.Sprint("copy_", x.Size))
}

func (g *gpu) zip(s device.Stream, op Binary, t Type, p plan, dst Array, a, b Operand, increment bool) error {
	number := b.Number
	if a.IsNumber {
		number = a.Number
	}
	l := newLaunch("zip", t, dst.Len())
	if op.Compares() && dst.Size == 1 {
		l.result(dst, false).operand(a).operand(b).Number(number).Word(dst.Len(), int(op)).plan(p)
		return g.run(s, l, &g.comparisons[t], "compare"+t.Suffix())
	}
	l.result(dst, increment).operand(a).operand(b).Number(number).Word(dst.Len(), int(op)).Flag(increment).plan(p)
	return g.run(s, l, &g.zips[t], "zip"+t.Suffix())
}

func (g *gpu) mapped(s device.Stream, op Unary, t Type, p plan, dst, x Array, lo, hi float64, increment bool) error {
	l := newLaunch("map", t, dst.Len()).result(dst, increment).read(x).Number(lo, hi)
	l.Word(dst.Len(), int(op)).Flag(increment).plan(p)
	return g.run(s, l, &g.maps[t], "map"+t.Suffix())
}

func (g *gpu) fold(s device.Stream, least, places bool, t Type, dst device.Ptr, x Array, w walk) error {
	kernel, name, size := &g.folds[t], "fold", x.Size
	if places {
		kernel, name, size = &g.args[t], "arg", 8
	}
	n := product(w.kept.dims)
	l := newLaunch("fold", t, 1).Blocks(n, 256, 1)
	l.Memory(device.Range{Ptr: dst, Bytes: int64(n) * int64(size)}, backend.Write).read(x)
	l.Word(n, product(w.folded.dims)).Flag(least)
	l.Dims(w.kept.dims, w.kept.strides[0]).Dims(w.folded.dims, w.folded.strides[0])
	return g.run(s, l, kernel, name+t.Suffix())
}
