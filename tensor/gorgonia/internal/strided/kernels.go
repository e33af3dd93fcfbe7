package strided

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// Kernels queues work on a stream. Any goroutine may call its methods. Close must not be called
// while one of them runs.
type Kernels struct {
	stream device.Stream
	// Either mem or gpu is nil.
	mem device.HostVisible
	gpu *gpu
}

// New returns the kernels for the stream's device. If the device neither runs Go functions nor
// loads PTX, it returns an error that wraps [device.ErrInvalid].
func New(stream device.Stream) (*Kernels, error) {
	switch dev := stream.Device().(type) {
	case device.HostVisible:
		return &Kernels{stream: stream, mem: dev}, nil
	case device.ModuleLoader:
		g, err := newGPU(dev)
		if err != nil {
			return nil, err
		}
		return &Kernels{stream: stream, gpu: g}, nil
	}
	return nil, fmt.Errorf("%w: %s has no kernels", device.ErrInvalid, stream.Device().Name())
}

// Close unloads the kernels, after the queued work has run.
func (k *Kernels) Close() error {
	if k.gpu == nil {
		return nil
	}
	return k.gpu.modules.Close()
}

// Operand is an array or a number.
type Operand struct {
	Array    Array
	Number   float64
	IsNumber bool
}

// Copy sets dst to x, which must have the same dimensions and element size.
func (k *Kernels) Copy(dst, x Array) error {
	if dst.IsDense() && x.IsDense() {
		return k.stream.CopyD2D(dst.Ptr, x.Ptr, x.Span().Bytes)
	}
	p, err := newPlan(dst, x)
	if err != nil {
		return err
	}
	if k.gpu != nil {
		return k.gpu.copy(k.stream, p, dst, x)
	}
	return k.copyOnHost(p, dst, x)
}

// Zip sets dst = op(a, b), or adds op(a, b) to dst if increment is set. The dst of a comparison may
// have elements of one byte, which are set to 1 or 0, and to which nothing can be added.
func (k *Kernels) Zip(op Binary, t Type, dst Array, a, b Operand, increment bool) error {
	p, err := newPlan(dst, a.over(dst), b.over(dst))
	if err != nil {
		return err
	}
	switch {
	case k.gpu != nil:
		return k.gpu.zip(k.stream, op, t, p, dst, a, b, increment)
	case t == Float32:
		return zipOnHost[float32](k, op, p, dst, a, b, increment)
	default:
		return zipOnHost[float64](k, op, p, dst, a, b, increment)
	}
}

// over returns the operand's array. For a number it returns an array that merges with dst in any
// loop.
func (o Operand) over(dst Array) Array {
	if o.IsNumber {
		return Array{Dims: dst.Dims, Strides: make([]int, len(dst.Dims))}
	}
	return o.Array
}

// Map sets dst = op(x), or adds op(x) to dst if increment is set. lo and hi are the parameters of
// Clamp.
func (k *Kernels) Map(op Unary, t Type, dst, x Array, lo, hi float64, increment bool) error {
	p, err := newPlan(dst, x)
	if err != nil {
		return err
	}
	switch {
	case k.gpu != nil:
		return k.gpu.mapped(k.stream, op, t, p, dst, x, lo, hi, increment)
	case t == Float32:
		return mapOnHost[float32](k, op, p, dst, x, lo, hi, increment)
	default:
		return mapOnHost[float64](k, op, p, dst, x, lo, hi, increment)
	}
}

// Fold sets dst to the least or the greatest elements over the folded dimensions or, if places is
// set, to their row-major indices in these dimensions, as int64. It takes the first of equal
// elements, and NaN before all others. dst is dense, with as many elements as the kept dimensions.
// The kept and the folded dimensions together are x's.
func (k *Kernels) Fold(least, places bool, t Type, dst device.Ptr, x Array, kept, folded []int) error {
	w, err := newWalk(x, kept, folded)
	if err != nil {
		return err
	}
	switch {
	case k.gpu != nil:
		return k.gpu.fold(k.stream, least, places, t, dst, x, w)
	case t == Float32:
		return foldOnHost[float32](k, least, places, dst, x, w)
	default:
		return foldOnHost[float64](k, least, places, dst, x, w)
	}
}

// walk is a fold: it iterates over the folded dimensions for each combination of the kept ones.
type walk struct{ kept, folded plan }

func newWalk(x Array, kept, folded []int) (w walk, err error) {
	if w.kept, err = newPlan(x.Permute(kept...)); err == nil {
		w.folded, err = newPlan(x.Permute(folded...))
	}
	return w, err
}
