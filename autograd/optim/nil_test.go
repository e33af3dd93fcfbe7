package optim_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/checkpoint"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// TestOptimizersOfNil: a nil pointer as an Optimizer is refused, and an optimiser whose constructor
// failed takes no parameters.
func TestOptimizersOfNil(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := b.Parameter(1)
	for _, opt := range []optim.Optimizer{nil, (*optim.SGD)(nil), (*optim.Adam)(nil), (*optim.RMSprop)(nil), (*optim.Adagrad)(nil)} {
		for name, minimize := range tapetest.Minimizers {
			tape := autograd.NewTape(b.Ctx, b.RT)
			minimize(tape, tape.Sum(tape.Param(p)), opt)
			require.ErrorIs(t, tape.Close(), device.ErrInvalid, "%s of a %T", name, opt)
		}
		_, err := optim.NewScheduler(opt, optim.ConstantLR{})
		require.ErrorIs(t, err, device.ErrInvalid)
		require.ErrorIs(t, offload.State(b.Ctx, opt, nil, 0), device.ErrInvalid)
		if opt != nil {
			require.ErrorIs(t, checkpoint.Checkpoint{Optimizer: opt}.Save(b.Ctx, filepath.Join(t.TempDir(), "c")), device.ErrInvalid)
		}
	}
	in := nn.Init(b.Ctx, nil)
	opt := nn.Own(in, optim.NewAdam(nil, optim.AdamConfig{}))
	require.ErrorIs(t, opt.AddGroup(autograd.Parameters{{Name: "p", Parameter: p}}, optim.AdamConfig{}), device.ErrInvalid)
	require.ErrorIs(t, opt.Step(b.Ctx), device.ErrInvalid)
	require.ErrorIs(t, opt.Prepare(b.Ctx), device.ErrInvalid)
	require.NoError(t, errors.Join(opt.ZeroGrad(b.Ctx), opt.Close()))
	var none context.Context
	require.ErrorIs(t, opt.Step(none), device.ErrInvalid)
	require.Error(t, in.Close())
}
