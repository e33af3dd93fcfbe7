package autograd_test

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/internal/ptxfiles"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// TestMain gives simulated GPUs their kernels, which builds without tags do not have.
func TestMain(m *testing.M) {
	if ptxfiles.Tensor == nil {
		ptxfiles.Tensor = os.DirFS("../tensor/internal/ptx")
	}
	cisterntest.Main(m)
}

// rounds is how often a test repeats what it does: full times for statistical power, and with
// -short so often that each of its code paths is still taken.
func rounds(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}

// bench is a device and everything on it that a test needs. Its end checks that nothing leaked.
type bench struct {
	t     testing.TB
	ctx   context.Context
	dev   device.Device
	cache *memcache.Cache
	rt    *tensor.Runtime

	shared bool // others use the runtime as well

	// What the runtime keeps for itself: a GPU's workspace of matrix products.
	ownBlocks, ownBytes int64
}

func open(t testing.TB, capacity int64) *bench {
	t.Helper()
	return openObserved(t, capacity, nil)
}

func openObserved(t testing.TB, capacity int64, observer memcache.Observer) *bench {
	t.Helper()
	return openConfigured(t, capacity, memcache.Config{Observer: observer})
}

func openConfigured(t testing.TB, capacity int64, cfg memcache.Config) *bench {
	t.Helper()
	s := stacktest.New(t, stacktest.Config{Capacity: capacity, Workspace: true, Cache: cfg})
	rt, err := tensor.NewRuntime(s.Cache, s.Pool, s.Stream)
	require.NoError(t, err)
	b := &bench{t: t, ctx: context.Background(), dev: s.Dev, cache: s.Cache, rt: rt}
	b.warmUp()
	t.Cleanup(func() {
		assert.NoError(t, rt.Close())
		assert.Zero(t, s.Cache.Stats().Allocation.All.Current, "live blocks")
	})
	return b
}

// warmUp lets the runtime take its own memory, and leaves nothing else behind. That of a host device
// takes none, which is not asked each time: the answer takes longer than many a test.
func (b *bench) warmUp() {
	if _, ok := b.dev.(*host.Device); ok && hostTakesNothing.Load() {
		return
	}
	x, err := b.rt.Zeros(b.ctx, tensor.Float64, 1, 1) // a small product of float32 takes none
	require.NoError(b.t, err)
	many, err := b.rt.Zeros(b.ctx, tensor.Float32, 1<<16)
	require.NoError(b.t, err)
	sum, err := b.rt.Sum(b.ctx, many) // in parts
	require.NoError(b.t, err)
	require.NoError(b.t, errors.Join(many.Release(), sum.Release()))
	y, err := b.rt.MatMul(b.ctx, x, x)
	require.NoError(b.t, err)
	require.NoError(b.t, x.Release())
	require.NoError(b.t, y.Release())
	require.NoError(b.t, b.cache.EmptyCache(b.ctx))
	b.cache.ResetPeakStats()
	s := b.cache.Stats()
	b.ownBlocks, b.ownBytes = s.Allocation.All.Current, s.AllocatedBytes.All.Current
	if _, ok := b.dev.(*host.Device); ok {
		hostTakesNothing.Store(b.ownBlocks == 0)
	}
}

var hostTakesNothing atomic.Bool

// live is the number of blocks, and bytes their bytes, without the runtime's own.
func (b *bench) live() int64  { return b.cache.Stats().Allocation.All.Current - b.ownBlocks }
func (b *bench) bytes() int64 { return b.cache.MemoryAllocated() - b.ownBytes }

// needsHost skips a test of what only the host device does.
func (b *bench) needsHost(why string) {
	b.t.Helper()
	cisterntest.OnlyHost(b.t, b.dev, why)
}

// fill takes all memory but for so many blocks of 512 bytes.
func (b *bench) fill(free int) (filler []memcache.Block) {
	b.t.Helper()
	for range 120 {
		block, err := b.cache.Alloc(b.ctx, 512, b.rt.Stream())
		require.NoError(b.t, err)
		filler = append(filler, block)
	}
	for size := int64(1 << 20); size >= 512; size /= 2 {
		for {
			block, err := b.cache.Alloc(b.ctx, size, b.rt.Stream())
			if err != nil {
				require.ErrorIs(b.t, err, memcache.ErrOutOfMemory)
				break
			}
			filler = append(filler, block)
		}
	}
	kept := filler[:0:0]
	for i := len(filler) - 1; i >= 0; i-- {
		if free > 0 && filler[i].Size() == 512 {
			require.NoError(b.t, filler[i].Free())
			free--
			continue
		}
		kept = append(kept, filler[i])
	}
	require.Zero(b.t, free, "too few blocks of 512 bytes")
	return kept
}

func upload[T tensor.Element](b *bench, data []T, shape ...int) *tensor.Tensor {
	b.t.Helper()
	x, err := tensor.FromSlice(b.ctx, b.rt, data, shape...)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { assert.NoError(b.t, x.Release()) })
	return x
}

func read[T tensor.Element](b *bench, x *tensor.Tensor) []T {
	b.t.Helper()
	s, err := tensor.ToSlice[T](b.ctx, x, nil)
	require.NoError(b.t, err)
	return s
}

// mlp is the model of the reference, 784-512-512-10, with parameters drawn from the seed.
func (b *bench) mlp(dtype tensor.Dtype, sizes ...int) autograd.Sequential {
	b.t.Helper()
	in := autograd.Init(b.ctx, b.rt, autograd.Seed(1), autograd.Dtype(dtype))
	model := autograd.Sequential{autograd.Flatten{}}
	for i := range len(sizes) - 1 {
		if i > 0 {
			model = append(model, autograd.ReLU{})
		}
		model = append(model, in.Linear(sizes[i], sizes[i+1]))
	}
	require.NoError(b.t, in.Err())
	b.t.Cleanup(func() { assert.NoError(b.t, model.Parameters().Release()) })
	return model
}

// blankLinear is a dense layer whose numbers were never drawn, which takes most of the time in making
// a large one: for tests that write them, or that run nothing.
func blankLinear(in *autograd.Initializer, inputs, outputs int) *autograd.Linear {
	blank := func(shape ...int) *autograd.Parameter {
		value, err := in.Runtime().New(memcache.WithCategory(tensor.Detached(in.Context()), memcache.CategoryParameter), in.Dtype(), shape...)
		if err != nil {
			in.Fail(err)
			return in.Ones(shape...) // which does nothing, after an error
		}
		p, err := autograd.NewParameter(value)
		in.Fail(err)
		autograd.Own(in, closing(p.Release))
		return p
	}
	return &autograd.Linear{Weight: blank(outputs, inputs), Bias: blank(outputs)}
}

// closing is a function that an initialiser calls at its end.
type closing func() error

func (c closing) Close() error { return c() }

// parameterOf is a parameter that owns value.
func (b *bench) parameterOf(value *tensor.Tensor) *autograd.Parameter {
	b.t.Helper()
	p, err := autograd.NewParameter(value)
	require.NoError(b.t, err)
	return p
}

// counting is a runtime whose stream counts launches by name. It is closed with the test.
func (b *bench) counting(launches map[string]int) *tensor.Runtime {
	b.t.Helper()
	stream, err := b.dev.NewStream(device.StreamOptions{Launching: func(_ device.Stream, name string) func(error) { launches[name]++; return nil }})
	require.NoError(b.t, err)
	rt, err := tensor.NewRuntime(b.cache, b.rt.Pool(), stream)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { require.NoError(b.t, rt.Close()) })
	return rt
}

// withErr returns an optimiser with the error that sticks to it.
func withErr[O autograd.Optimizer](o O) (O, error) { return o, o.Core().Err() }

// newTape is a tape that records, or one of NoGrad.
func newTape(ctx context.Context, rt *tensor.Runtime, record bool) *autograd.Tape {
	if record {
		return autograd.NewTape(ctx, rt)
	}
	return autograd.NoGrad(ctx, rt)
}

// elements is the number of elements of a shape.
func elements(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// transpose is the options that transpose the first factor, the second, both or none.
func transpose(first, second bool) (o tensor.MatMulOption) {
	if first {
		o = tensor.TransA
	}
	if second {
		o |= tensor.TransB
	}
	return o
}

// valueOr is *p, or standard if p is nil.
func valueOr(p *float64, standard float64) float64 {
	if p == nil {
		return standard
	}
	return *p
}
