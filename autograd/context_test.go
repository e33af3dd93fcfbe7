package autograd_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

type phaseKey struct{}

func phase(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, phaseKey{}, name)
}

// phases counts allocations and frees by the phase that their contexts name; "" is none.
type phases struct {
	mu            sync.Mutex
	allocs, frees map[string]int
}

func (p *phases) Start(ctx context.Context, op memcache.Op) (context.Context, memcache.Operation) {
	name, _ := ctx.Value(phaseKey{}).(string)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch op {
	case memcache.OpAlloc:
		p.allocs[name]++
	case memcache.OpFree:
		p.frees[name]++
	}
	return ctx, nil
}

func (p *phases) reset() { p.allocs, p.frees = map[string]int{}, map[string]int{} }

// TestEveryFreeHasAContext checks the contexts of a step's allocations and frees, which are the
// parents of their spans.
func TestEveryFreeHasAContext(t *testing.T) {
	seen := &phases{}
	seen.reset()
	b := tapetest.OpenObserved(t, 64<<20, seen)
	model := b.MLP(tensor.Float32, 8, 16, 4)
	opt, err := tapetest.WithErr(optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
	require.NoError(t, err)
	require.NoError(t, opt.Prepare(b.Ctx))
	seen.reset()

	ctx, life := tensor.WithLifetime(phase(b.Ctx, "scope"))
	x, err := tensor.FromSlice(ctx, b.RT, make([]float32, 16), 2, 8)
	require.NoError(t, err)
	y, err := tensor.FromSlice(ctx, b.RT, []int32{1, 2})
	require.NoError(t, err)
	tape := autograd.NewTape(phase(ctx, "forward"), b.RT)
	loss := tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y)
	tape.SetContext(phase(ctx, "backward"))
	_, err = tape.Backward(loss)
	require.NoError(t, err)
	require.NoError(t, opt.Step(phase(ctx, "step")))
	require.NoError(t, opt.ZeroGrad(phase(ctx, "zero")))
	assert.Equal(t, 4, seen.frees["zero"], "the gradients of two layers")
	tape.SetContext(phase(ctx, "close"))
	require.NoError(t, tape.Close())
	assert.Equal(t, 1, seen.frees["close"], "the loss")
	require.NoError(t, life.Close())
	assert.Equal(t, 2, seen.frees["scope"], "pictures and labels")
	allocs, frees := 0, 0
	for _, n := range seen.allocs {
		allocs += n
	}
	for _, n := range seen.frees {
		frees += n
	}
	assert.Equal(t, allocs-1, frees, "all but the runtime's word for faults")
	assert.Zero(t, seen.allocs[""], "%v", seen.allocs)
	assert.Zero(t, seen.frees[""], "%v", seen.frees)

	require.NoError(t, errors.Join(opt.Close(), model.Parameters().ReleaseContext(phase(b.Ctx, "release"))))
	assert.Equal(t, 4, seen.frees["release"])

	ended, cancel := context.WithCancel(b.Ctx)
	late, err := b.RT.Zeros(ended, tensor.Float32, 3)
	require.NoError(t, err)
	cancel()
	var none context.Context
	require.NoError(t, late.ReleaseContext(ended), "memory comes back after the context has ended")
	late, err = b.RT.Zeros(b.Ctx, tensor.Float32, 3)
	require.NoError(t, err)
	require.NoError(t, late.ReleaseContext(none))
	var nobody *autograd.Parameter
	require.NoError(t, nobody.ZeroGrad(b.Ctx))
	require.NoError(t, autograd.Parameters{{Name: "w", Parameter: nobody}}.ReleaseContext(b.Ctx))
	assert.Nil(t, nobody.Value())
	assert.Nil(t, nobody.Grad())
	assert.Zero(t, autograd.Parameters{{Name: "w", Parameter: nobody}}.Elements())
	assert.Zero(t, autograd.Parameters{{Name: "w", Parameter: nobody}}.Bytes())
}
