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

// DeviceEngine is an engine for tensors of gorgonia.org/tensor in memory that the host can't
// access, such as a GPU's. It computes on the device:
//
//	engine, err := gorgonia.NewDeviceEngine(rt)
//	x, err := engine.FromHost(ctx, gtensor.New(gtensor.WithShape(2, 3), gtensor.WithBacking(data)))
//	y, err := gtensor.Mul(x, x)
//	result, err := engine.ToHost(ctx, y.(*gtensor.Dense))
//
// # Operations
//
// For float32 and float64: elementwise arithmetic and functions, comparisons, MatMul, MatVecMul,
// Inner, Outer, Dot, Trace, FMA, Sum, Min, Max, Argmax, Argmin, SoftMax, LogSoftMax and their
// gradients. For every type without Go pointers: Transpose, Concat, Stack and Repeat. Operands may
// be views, transposed or column-major. All other operations change nothing, and return an error
// that wraps [ErrUnsupported] or [ErrDtype] and names the operation and the type.
//
// Operations are queued on the runtime's stream and return at once. Only operations whose result is
// a number (Inner, Trace), [DeviceEngine.ToHost], [DeviceEngine.Sync] and copies into Go memory
// wait.
//
// # Differences from StdEng
//
// Arithmetic follows IEEE 754, also for division by 0. Transcendental functions of float32 and sums
// are computed in float64. Matrix products add in another order. If an element is NaN, Min and Max
// return NaN, and Argmin and Argmax return the index of the first NaN. Of several infinities they
// return the first. A line of SoftMax or LogSoftMax is NaN if it contains NaN or +Inf; other lines
// are not affected. Operands never change. As in [Engine], comparisons refuse a tensor to reuse if
// its type is not the result's, Dot honours WithIncr and WithReuse, and SoftMax honours WithReuse.
// Tensors with masks are errors.
//
// The engine returns correct results in these cases, in which StdEng panics or is wrong: reductions
// along an inner axis of more than three dimensions, Dot of more than two dimensions with one of
// size 1 to sum over, Repeat of a (1, n) tensor along its first axis, MinBetween and MaxBetween
// with UseUnsafe, and a number on the left of a tensor of one element with UseUnsafe.
//
// # Methods of *Dense
//
// Many methods of *Dense read or write memory without calling the engine. With memory that the host
// can't access, they behave as follows:
//
//   - Printing (%v, fmt.Println), Data and ScalarValue of scalars, elements of Data's slice, Get,
//     Set, Zero, Eq, Float32s and the like, the encoders and writers, and gtensor.Outer, which
//     calls Zero, crash the program with a fault. String is safe. Use [DeviceEngine.ToHost] and
//     print its result, and [DeviceEngine.Outer].
//   - gtensor.Copy and CopyTo from a host tensor to a tensor of the engine crash the program too.
//     The other direction works. [DeviceEngine.Copy] supports both.
//   - Materialize of a strided view or a transposed tensor returns zeros without an error, because
//     the library drops the error. Use [DeviceEngine.Materialize].
//   - gtensor.New with WithBacking or FromScalar keeps the Go memory, and operations refuse it
//     with [ErrForeign]. Use [DeviceEngine.New] or [DeviceEngine.FromHost].
//   - A tensor with a dimension of 0 has no memory, and its Uintptr panics.
//   - At, SetAt, Memset, ToMat64, and gtensor.StdEng with such an operand return errors.
//
// # Memory
//
// As with [Engine], memory lives until [DeviceEngine.Release], until the [Lifetime] in which it was
// allocated closes, or until Close. Queued work may still use released memory. If there is not
// enough memory, calls in which the library allocates panic with a [*MemoryError]; wrap them in
// [DeviceEngine.Do].
//
// A DeviceEngine is safe for concurrent use by goroutines that use different tensors. It needs a
// 64-bit machine.
type DeviceEngine struct {
	rt      *tensor.Runtime
	kernels *strided.Kernels
	heap
}

// NewDeviceEngine returns an engine whose tensors have memory from the runtime's cache and are
// computed on its stream. The caller closes the engine before the runtime.
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

// Runtime returns the runtime that owns the memory and the stream.
func (e *DeviceEngine) Runtime() *tensor.Runtime { return e.rt }

// Cache returns the cache from which the memory is allocated.
func (e *DeviceEngine) Cache() *memcache.Cache { return e.rt.Cache() }

// Stream returns the stream on which all work is queued.
func (e *DeviceEngine) Stream() device.Stream { return e.rt.Stream() }

// NonStdAlloc marks an engine that allocates memory (gtensor.NonStdEngine).
func (e *DeviceEngine) NonStdAlloc() {}

// AllocAccessible returns false, because Go code can't access the memory.
func (e *DeviceEngine) AllocAccessible() bool { return false }

// WorksWith returns true: the engine takes row-major and column-major tensors.
func (e *DeviceEngine) WorksWith(gtensor.DataOrder) bool { return true }

// Sync waits until everything queued on the engine's stream has run, or until ctx is done. It
// returns the device's sticky error, if any, and the errors that earlier operations could not
// return.
func (e *DeviceEngine) Sync(ctx context.Context) error {
	err := e.rt.Synchronize(ctx)
	if err != nil {
		err = fmt.Errorf("gorgonia: Sync: %w", err)
	}
	return errors.Join(e.unpark(), err)
}

// Close closes all lifetimes and frees the memory of every tensor of the engine. If tensors were
// not released, it returns an error that wraps [ErrLeaked]. Tensors of package tensor that share
// memory keep it. Close is idempotent. Later allocations and operations return errors that wrap
// [ErrClosed].
func (e *DeviceEngine) Close() error {
	engines.remove(e)
	return errors.Join(e.heap.Close(), e.kernels.Close())
}

// call is one operation while it is being queued.
type call struct {
	e     *DeviceEngine
	temps []*tensor.Tensor // released when the operation is queued
	made  []*gtensor.Dense // released if the operation fails
}

// do runs an operation. f checks its arguments before it changes anything.
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

// one is do for operations with a result. After an error the result is zero.
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

// unsupported returns the error of operations without kernels.
func unsupported(op string, t gtensor.Tensor) error {
	what := "nil"
	if d, ok := t.(*gtensor.Dense); ok && d != nil {
		what = fmt.Sprint(d.Dtype())
	}
	return fmt.Errorf("gorgonia: %s of %s: %w: the device has no kernel for it: use ToHost", op, what, ErrUnsupported)
}
