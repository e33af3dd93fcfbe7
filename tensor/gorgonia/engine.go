package gorgonia

import (
	"context"
	"errors"
	"fmt"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// Engine is an engine for tensors of gorgonia.org/tensor with memory from a cache, on a device
// whose memory the host can access:
//
//	engine, err := gorgonia.NewEngine(cache, stream)
//	t := gtensor.New(gtensor.WithEngine(engine), gtensor.Of(gtensor.Float32),
//		gtensor.WithShape(2, 3))
//	defer engine.Release(t)
//
// It computes like gtensor.StdEng (matrix products with gonum's BLAS), and the results of all
// operations have memory from the cache too. StdEng returns the results of some operations only in
// Go memory (comparisons, reductions, Argmax, Concat, Stack, ByIndices, SVD). They cost one more
// copy.
//
// # Differences from StdEng
//
// Views and transposed tensors have the same results as contiguous tensors, whereas StdEng ignores
// strides in places (Dot of more than two dimensions, comparisons with a number on the left and
// AsSameType). Panics of the library become errors (MinBetween and MaxBetween with UseUnsafe,
// ByIndices of some shapes, Dot with dimensions of 1). Integer division by zero is an error in Div,
// Mod and Inv, and nothing is written, whereas StdEng panics, or writes zeros with or without an
// error. A comparison refuses a tensor to reuse that is not of the result's type; StdEng would
// write bools into it. Dot honours WithIncr, and WithReuse for an inner product. Floats divided by
// 0 are the same as with StdEng: +Inf, except for views, which follow IEEE 754.
//
// # Releasing
//
// gorgonia.org/tensor never frees memory, and the garbage collector does not free the engine's
// memory either. A tensor keeps its block until [Engine.Release], until the [Lifetime] in which it
// was allocated closes, or until [Engine.Close], which reports it. Use a lifetime around every
// step, and Release for tensors that live longer:
//
//	lifetime := engine.NewLifetime()
//	defer lifetime.Close()
//
// Some methods of *Dense allocate temporaries that they don't return, and only a lifetime frees
// them: TensorMul, Norm, ReadNpy into a tensor that has memory, and MatMul, MatVecMul and Outer
// with WithIncr (the package function Dot with WithIncr has none) or if they fail. So do operations
// in which the library panics. Call gtensor.ReturnTensor only on released tensors, because it
// forgets the block and reuses the *Dense for another caller.
//
// # Views
//
// A view made by Slice, and a ShallowClone, does not keep its parent's memory. After the parent is
// released, both read what the next owner of the memory writes. [Engine.View] returns views that
// keep the memory.
//
// # Out of memory
//
// The library panics with a [*MemoryError] when an engine has no memory. Operations called through
// the engine's methods, and all package functions that call them (gtensor.Add and so on), return it
// as an error, and so does [Engine.New]. Wrap other calls that allocate in [Engine.Do]: Clone,
// SafeT, Materialize, MatMul without a reuse tensor, and gtensor.New itself.
//
// # Streams and goroutines
//
// Operations run on the caller's goroutine. Before they start, they wait for everything queued on
// the engine's stream, and on the streams of operands that belong to other engines. Methods of
// *Dense that access memory without an operation (Data, At, Set, Zero, Format, ...) do not wait. If
// work on the tensor may be queued, call [Engine.Sync] first.
//
// An Engine is safe for concurrent use by goroutines that use different tensors. A lifetime
// collects the allocations of all goroutines. For separate lifetimes use one engine per goroutine;
// engines are cheap.
//
// # Limits
//
// Tensors must be of a type without Go pointers. New refuses strings, and gtensor.New with such a
// type would hide its pointers from the garbage collector (as it does with StdEng). The result of
// an operation has memory of the left operand's engine. Tensors with a dimension of size 0 use no
// memory, and their Data and Uintptr panic with every engine.
type Engine struct {
	std    gtensor.StdEng
	cache  *memcache.Cache
	stream device.Stream
	host   device.HostVisible

	heap
}

// NewEngine returns an engine whose tensors have memory of cache, allocated on stream. The device's
// memory must be accessible ([device.Properties]), because most of gorgonia.org/tensor would fault
// otherwise. The caller owns cache and stream, and closes them after the engine.
func NewEngine(cache *memcache.Cache, stream device.Stream) (*Engine, error) {
	if cache == nil || stream == nil {
		return nil, fmt.Errorf("gorgonia: NewEngine: %w: the cache or the stream is nil", ErrInvalid)
	}
	dev := cache.Device()
	if d := stream.Device(); d != dev {
		return nil, fmt.Errorf("gorgonia: NewEngine: %w: stream %d belongs to device %d (%s), the cache to device %d (%s)",
			ErrInvalid, stream.ID(), d.ID(), d.Name(), dev.ID(), dev.Name())
	}
	host, ok := dev.(device.HostVisible)
	if !ok || !dev.Properties().Accessible {
		return nil, fmt.Errorf("gorgonia: NewEngine: %w: the host can't touch the memory of %s, which gorgonia.org/tensor "+
			"needs: use NewDeviceEngine, or package tensor", ErrUnsupported, dev.Name())
	}
	e := &Engine{cache: cache, stream: stream, host: host}
	e.init(e)
	return e, nil
}

// Cache returns the cache from which the memory is allocated.
func (e *Engine) Cache() *memcache.Cache { return e.cache }

// Stream returns the stream on which the memory is allocated.
func (e *Engine) Stream() device.Stream { return e.stream }

// NonStdAlloc marks an engine that allocates memory (gtensor.NonStdEngine).
func (e *Engine) NonStdAlloc() {}

// AllocAccessible returns true, because Go code can access the memory.
func (e *Engine) AllocAccessible() bool { return true }

// WorksWith returns true: the engine takes row-major and column-major tensors.
func (e *Engine) WorksWith(gtensor.DataOrder) bool { return true }

// Sync waits until everything queued on the engine's stream has run, or until ctx is done, so that
// tensors may be accessed directly. It returns the device's sticky error, if any, and the errors
// that earlier operations could not return.
func (e *Engine) Sync(ctx context.Context) error {
	err := e.stream.Synchronize(ctx)
	if err != nil && e.stream.Closed() {
		err = nil // all of its work is complete
	}
	if err != nil {
		err = fmt.Errorf("gorgonia: Sync: %w", err)
	}
	return errors.Join(e.unpark(), err)
}
