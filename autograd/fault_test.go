package autograd

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/transfer"
)

// smallStep is a training step in which every tensor fits one block of 512 bytes.
func smallStep(ctx context.Context, model Sequential, opt Optimizer, x, y *tensor.Tensor) error {
	if err := opt.ZeroGrad(ctx); err != nil {
		return err
	}
	tape := NewTape(ctx, x.Runtime())
	defer tape.Close()
	if _, err := tape.Backward(tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y)); err != nil {
		return err
	}
	return opt.Step(ctx)
}

// TestOutOfMemoryAnywhereLeaksNothing lets a step run out of memory with every number of free blocks, from
// none to enough.
func TestOutOfMemoryAnywhereLeaksNothing(t *testing.T) {
	const segment = 2 << 20 // what the cache asks the device for
	b := open(t, segment)
	model := b.mlp(gtensor.Float32, 8, 8, 8, 3)
	x, y := upload(b, make([]float32, 32), 4, 8), upload(b, []int32{0, 1, 2, 0})
	opt, err := NewAdam(model.Parameters(), AdamConfig{})
	require.NoError(t, err)

	var filler []memcache.Block
	fill := func(free int) {
		for {
			block, err := b.cache.Alloc(b.ctx, 512, b.rt.Stream())
			if err != nil {
				require.ErrorIs(t, err, memcache.ErrOutOfMemory)
				break
			}
			filler = append(filler, block)
		}
		for range free {
			require.NoError(t, filler[len(filler)-1].Free())
			filler = filler[:len(filler)-1]
		}
	}
	failures := 0
	for free := 0; ; free++ {
		require.Less(t, free, 100)
		fill(free)
		before := b.live()
		err := smallStep(b.ctx, model, opt, x, y)
		require.NoError(t, model.Parameters().ZeroGrad(b.ctx))
		if err == nil {
			break
		}
		failures++
		require.ErrorIs(t, err, memcache.ErrOutOfMemory)
		if opt.state[0] == nil { // neither the optimiser's state nor the runtime's word for faults came to stay
			assert.LessOrEqual(t, b.live()-before, int64(1), "with %d free blocks", free)
		}
	}
	assert.Greater(t, failures, 10, "every number of live tensors up to the peak of the step")
	for _, block := range filler {
		require.NoError(t, block.Free())
	}
	require.NoError(t, opt.Close())
	require.NoError(t, smallStep(b.ctx, model, opt, x, y), "the model still trains")
	require.NoError(t, opt.Close())
	require.NoError(t, model.Parameters().ZeroGrad(b.ctx))
	assert.Equal(t, int64(6+2+1), b.live(), "parameters, batch, and the word for faults")
}

// TestAFailedKernelAnywhereLeaksNothing lets the n-th launch of a step fail, for every n, and releases
// everything in the order of a program that gives up.
func TestAFailedKernelAnywhereLeaksNothing(t *testing.T) {
	for n := 1; ; n++ {
		require.Less(t, n, 200)
		if failLaunch(t, n) {
			assert.Equal(t, 16, n, "a step has 15 launches")
			return
		}
	}
}

func failLaunch(t *testing.T, n int) (survived bool) {
	ctx := context.Background()
	dev := cisterntest.Host(t, 64<<20)
	cache, err := memcache.New(dev, memcache.Config{})
	require.NoError(t, err)
	pool, err := transfer.New(dev, transfer.Config{})
	require.NoError(t, err)
	stream := cisterntest.Stream(t, dev)
	rt, err := tensor.NewRuntime(cache, pool, stream)
	require.NoError(t, err)
	model := Sequential{}
	for _, outputs := range []int{8, 3} {
		in := Init(ctx, rt, Seed(1))
		model = append(model, in.Linear(8, outputs), ReLU{})
		require.NoError(t, in.Err())
	}
	model = model[:3]
	x, err := tensor.FromSlice(ctx, rt, make([]float32, 32), 4, 8)
	require.NoError(t, err)
	y, err := tensor.FromSlice(ctx, rt, []int32{0, 1, 2, 0})
	require.NoError(t, err)
	opt, err := NewAdam(model.Parameters(), AdamConfig{})
	require.NoError(t, err)

	dev.Fail(host.FaultLaunch, n)
	err = smallStep(ctx, model, opt, x, y)
	if err == nil {
		err = rt.Synchronize(ctx)
	}
	survived = err == nil
	if !survived {
		assert.ErrorIs(t, err, device.ErrSticky)
	}
	_ = model.Parameters().Release()
	_ = opt.Close()
	_ = x.Release()
	_ = y.Release()
	tensors, _ := rt.Live()
	assert.Zero(t, tensors, "launch %d", n)
	_ = rt.Close()
	assert.Zero(t, cache.Stats().Allocation.All.Current, "launch %d", n)
	_ = pool.Close()
	_ = stream.Close()
	_ = cache.Close()
	_ = dev.Close()
	return survived
}
