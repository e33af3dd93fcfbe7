package gorgonia

import (
	"context"
	"errors"
	"fmt"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// Engine gives tensors of gorgonia.org/tensor memory from a cache, on a device whose memory the host can
// touch:
//
//	engine, err := tensor.NewEngine(cache, stream)
//	t := gtensor.New(gtensor.WithEngine(engine), gtensor.Of(gtensor.Float32), gtensor.WithShape(2, 3))
//	defer engine.Release(t)
//
// It computes as gtensor.StdEng does (matrix products with gonum's BLAS), and the results of all operations
// have memory from the cache too. The few that StdEng can only deliver in Go memory (comparisons, reductions,
// Argmax, Concat, Stack, ByIndices, SVD) cost one more copy.
//
// # Where it differs from StdEng
//
// Views and transposed tensors have the results of the same numbers one after the other; StdEng ignores strides in
// places (Dot of more than two dimensions, comparisons with a number on the left and AsSameType). Panics of the library
// are errors (MinBetween and MaxBetween with UseUnsafe, ByIndices of some shapes, Dot with dimensions of 1). Integer division by zero is
// an error in Div, Mod and Inv, and nothing is written; StdEng panics, or writes zeros with or without an error. A
// comparison refuses a tensor to reuse that is not of the result's type, into which StdEng writes bools. Dot honours
// WithIncr, and WithReuse for an inner product. Floats divided by 0 are StdEng's: +Inf, but for views, where they are as in IEEE 754.
//
// # Releasing
//
// gorgonia.org/tensor never frees: a tensor that is dropped keeps its block until [Engine.Release], until the
// [Lifetime] in which it was made closes, or until [Engine.Close], which reports it. The garbage collector
// frees nothing. Use a lifetime around every step, and Release for what lives longer:
//
//	lifetime := engine.NewLifetime()
//	defer lifetime.Close()
//
// Some methods of *Dense make temporaries that nobody gets to see, and only a lifetime frees: TensorMul, Norm,
// ReadNpy into a tensor that has memory, and MatMul, MatVecMul and Outer with WithIncr (the package function
// Dot with WithIncr has none) or if they fail; so do operations in which the library panics. Call gtensor.ReturnTensor only on tensors that were released: it forgets the
// block, and hands the *Dense to somebody else.
//
// # Views
//
// A view made by Slice, and a ShallowClone, does not keep the memory of its parent: once the parent is
// released both read what the next owner of the memory writes. [Engine.View] makes views that do.
//
// # Out of memory
//
// The library panics when an engine has no memory, with an [*MemoryError]. Operations called through the
// engine's methods, and all package functions that lead there (gtensor.Add and so on), return it as an
// error; so does [Engine.New]. For what else allocates (Clone, SafeT, Materialize, MatMul without a reuse
// tensor, and gtensor.New itself) wrap the calls in [Engine.Do].
//
// # Streams and goroutines
//
// Operations run on the caller's goroutine. They wait first until everything queued on the engine's stream
// is done, and on the streams of operands that belong to other engines. Methods of *Dense that touch memory
// without an operation (Data, At, Set, Zero, Format, ...) do not wait: call [Engine.Sync] before them if
// work on the tensor may be queued.
//
// An Engine is safe for concurrent use by goroutines that use different tensors. A lifetime collects what every
// goroutine allocates; goroutines that want lifetimes of their own use engines of their own, which cost little.
//
// # Limits
//
// Tensors must be of a type without Go pointers: New refuses strings, and gtensor.New with such a type would
// hide its pointers from the garbage collector (as it does with StdEng). In an operation the engine of the
// left operand decides whose memory the result has. Tensors with a dimension of size 0 use no memory; their
// Data and Uintptr panic, whatever the engine.
type Engine struct {
	std    gtensor.StdEng
	cache  *memcache.Cache
	stream device.Stream
	host   device.HostVisible

	heap
}

// NewEngine makes an engine whose tensors have memory of cache, allocated on stream. The device's memory
// must be accessible ([device.Properties]): on other devices most of gorgonia.org/tensor would
// read and write addresses that fault. The caller keeps cache and stream, and closes them after the engine.
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

// Cache is the cache that the memory comes from.
func (e *Engine) Cache() *memcache.Cache { return e.cache }

// Stream is the stream that memory is allocated on.
func (e *Engine) Stream() device.Stream { return e.stream }

// NonStdAlloc marks an engine that allocates (gtensor.NonStdEngine).
func (e *Engine) NonStdAlloc() {}

// AllocAccessible reports that Go code can touch the memory: true.
func (e *Engine) AllocAccessible() bool { return true }

// WorksWith reports that the engine takes row-major and column-major tensors: true.
func (e *Engine) WorksWith(gtensor.DataOrder) bool { return true }

// Sync waits until everything queued on the engine's stream is done, so that tensors may be touched
// directly. It returns the device's sticky error, if any, and the errors that earlier operations had no way
// to return. Cancelling ctx ends the waiting.
func (e *Engine) Sync(ctx context.Context) error {
	err := e.stream.Synchronize(ctx)
	if err != nil && e.stream.Closed() {
		err = nil // all it ever did is complete
	}
	if err != nil {
		err = fmt.Errorf("gorgonia: Sync: %w", err)
	}
	return errors.Join(e.unpark(), err)
}
