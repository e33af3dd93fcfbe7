package gorgonia

import (
	"context"
	"errors"
	"fmt"
	"math/bits"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/gorgonia/internal/strided"
)

// DeviceEngine gives tensors of gorgonia.org/tensor memory that the host can't touch, such as a GPU's, and computes where
// it is:
//
//	engine, err := gorgonia.NewDeviceEngine(rt)
//	x, err := engine.FromHost(ctx, gtensor.New(gtensor.WithShape(2, 3), gtensor.WithBacking(data)))
//	y, err := gtensor.Mul(x, x)
//	result, err := engine.ToHost(ctx, y.(*gtensor.Dense))
//
// # What it computes
//
// Elementwise arithmetic and functions, comparisons, MatMul, MatVecMul, Inner, Outer, Dot, Trace, FMA, Sum, Min, Max, Argmax,
// Argmin, SoftMax, LogSoftMax and their gradients, of float32 and float64; Transpose, Concat, Stack and Repeat of every
// type without Go pointers. Operands may be views, transposed or column-major. Everything else is an error that wraps
// [ErrUnsupported] or [ErrDtype] and names the operation and the type; nothing was changed then.
//
// Operations are queued on the runtime's stream and return at once. Only what gives a number (Inner, Trace), [DeviceEngine.ToHost],
// [DeviceEngine.Sync] and copies into Go memory wait.
//
// # Where it differs from StdEng
//
// Arithmetic is IEEE 754's, also division by 0. Transcendental functions of float32 are computed in float64, and so are sums; products
// of matrices add in another order. NaN is the least and the greatest of a reduction, and Argmin and Argmax give its first index, or
// that of the first of several infinities. A line of SoftMax or LogSoftMax with NaN or +Inf is NaN, and no other line is. Operands
// never change. As in [Engine], comparisons refuse a tensor to reuse of another type than the result's, Dot honours WithIncr and
// WithReuse, and SoftMax WithReuse. Tensors with masks are errors.
//
// Where StdEng panics or is wrong the engine is right: reductions along an inner axis of more than three dimensions, Dot of more
// than two with one of 1 to sum over, Repeat of a (1, n) along its first axis, MinBetween and MaxBetween with UseUnsafe, and a
// number on the left of a tensor of one element with UseUnsafe.
//
// # What gorgonia.org/tensor itself does with such tensors
//
// Many methods of *Dense read or write memory without asking the engine. With memory that the host can't touch:
//
//   - Printing (%v, fmt.Println), Data and ScalarValue of scalars, Get, Set, Zero, Eq, Float32s and the like, the encoders and
//     writers end the program with a fault, and so do elements of Data's slice, and gtensor.Outer, which calls Zero. String is safe. Use
//     [DeviceEngine.ToHost] and print that, and [DeviceEngine.Outer].
//   - gtensor.Copy and CopyTo from a host tensor to one of the engine end the program, too. The other direction works.
//     [DeviceEngine.Copy] does both.
//   - Materialize of a strided view or a transposed tensor gives zeros, without an error, since the library drops it. Use
//     [DeviceEngine.Materialize].
//   - gtensor.New with WithBacking or FromScalar keeps the Go memory: operations refuse it with [ErrForeign]. Use [DeviceEngine.New] or
//     [DeviceEngine.FromHost].
//   - A tensor with a dimension of 0 has no memory: Uintptr panics.
//   - At, SetAt, Memset, ToMat64, and gtensor.StdEng with such an operand return errors.
//
// # Memory
//
// As with [Engine], memory lives until [DeviceEngine.Release], until the [Lifetime] in which it was made closes, or until Close. What
// was released may still be used by work that is queued. Out of memory is a panic of the library with a [*MemoryError], where
// it allocates itself: wrap such calls in [DeviceEngine.Do].
//
// A DeviceEngine is safe for concurrent use by goroutines that use different tensors. It needs a machine of 64 bits.
type DeviceEngine struct {
	rt      *tensor.Runtime
	kernels *strided.Kernels
	heap
}

// NewDeviceEngine makes an engine whose tensors have memory of the runtime's cache and are computed on its stream. The
// caller closes the engine before the runtime.
func NewDeviceEngine(rt *tensor.Runtime) (*DeviceEngine, error) {
	if rt == nil {
		return nil, fmt.Errorf("gorgonia: NewDeviceEngine: %w: the runtime is nil", ErrInvalid)
	}
	if bits.UintSize < 64 {
		return nil, fmt.Errorf("gorgonia: NewDeviceEngine: %w: addresses of %d bits don't hold those of devices", ErrUnsupported, bits.UintSize)
	}
	k, err := strided.New(rt.Stream())
	if err != nil {
		return nil, fmt.Errorf("gorgonia: NewDeviceEngine: the kernels: %w", err)
	}
	e := &DeviceEngine{rt: rt, kernels: k}
	e.init(e)
	engines.add(e)
	return e, nil
}

// Runtime is the runtime that memory and stream belong to.
func (e *DeviceEngine) Runtime() *tensor.Runtime { return e.rt }

// Cache is the cache that the memory comes from.
func (e *DeviceEngine) Cache() *memcache.Cache { return e.rt.Cache() }

// Stream is the stream that everything is queued on.
func (e *DeviceEngine) Stream() device.Stream { return e.rt.Stream() }

// NonStdAlloc marks an engine that allocates (gtensor.NonStdEngine).
func (e *DeviceEngine) NonStdAlloc() {}

// AllocAccessible reports that Go code can touch the memory: false.
func (e *DeviceEngine) AllocAccessible() bool { return false }

// WorksWith reports that the engine takes row-major and column-major tensors: true.
func (e *DeviceEngine) WorksWith(gtensor.DataOrder) bool { return true }

// Sync waits until everything queued on the engine's stream is done. It returns the device's sticky error, if any, and the
// errors that earlier operations had no way to return. Cancelling ctx ends the waiting.
func (e *DeviceEngine) Sync(ctx context.Context) error {
	err := e.rt.Synchronize(ctx)
	if err != nil {
		err = fmt.Errorf("gorgonia: Sync: %w", err)
	}
	return errors.Join(e.unpark(), err)
}

// Close closes all lifetimes and frees the memory of every tensor of the engine. Tensors that were not released are reported:
// an error that wraps [ErrLeaked]. Tensors of package tensor that share memory keep it. Close is idempotent; later allocations and
// operations are errors that wrap [ErrClosed].
func (e *DeviceEngine) Close() error {
	engines.remove(e)
	return errors.Join(e.heap.Close(), e.kernels.Close())
}

// call is one operation while it is queued.
type call struct {
	e     *DeviceEngine
	temps []*tensor.Tensor // released when it is queued
	made  []*gtensor.Dense // released if it fails
}

// do runs an operation: f checks its arguments before it changes anything.
func (e *DeviceEngine) do(op string, f func(c *call) error) (err error) {
	if err := e.ready(); err != nil {
		return fmt.Errorf("gorgonia: %s: %w", op, err)
	}
	c := &call{e: e}
	defer func() {
		for _, t := range c.temps {
			e.park(t.Release())
		}
		if err != nil {
			for _, d := range c.made {
				e.park(e.Release(d))
			}
		}
	}()
	defer recoverMemory(op, &err)
	if err := f(c); err != nil {
		return fmt.Errorf("gorgonia: %s: %w", op, err)
	}
	return nil
}

// one is do for operations with a result, which is zero after an error.
func one[R any](e *DeviceEngine, op string, f func(c *call) (R, error)) (R, error) {
	var r, none R
	err := e.do(op, func(c *call) (err error) {
		r, err = f(c)
		return err
	})
	if err != nil {
		return none, err
	}
	return r, nil
}

// unsupported is the error of operations that there are no kernels for.
func unsupported(op string, t gtensor.Tensor) error {
	what := "nil"
	if d, ok := t.(*gtensor.Dense); ok && d != nil {
		what = fmt.Sprint(d.Dtype())
	}
	return fmt.Errorf("gorgonia: %s of %s: %w: the device has no kernel for it: use ToHost", op, what, ErrUnsupported)
}
