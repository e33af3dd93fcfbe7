package optim_test

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/checkpoint"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// sgdOfGroups returns an SGD of two groups with the rates 1 and 0.5.
func sgdOfGroups(b *tapetest.Bench) (*nn.Initializer, *optim.SGD) {
	in := nn.Init(b.Ctx, b.RT)
	sgd := nn.Own(in, optim.NewSGD(autograd.Parameters{{Name: "p", Parameter: in.Parameter([]float64{1})}}, optim.SGDConfig{LR: new(1.0)}))
	in.Fail(sgd.AddGroup(autograd.Parameters{{Name: "q", Parameter: in.Parameter([]float64{1})}}, optim.SGDConfig{LR: new(0.5)}))
	require.NoError(b.T, in.Err())
	return in, sgd
}

func ratesOf(opt optim.Optimizer) (rates []float64) {
	for _, g := range opt.Core().Groups() {
		rates = append(rates, g.LR())
	}
	return rates
}

// TestSchedulesOfGroups: several schedules are one for each group. Another number of them is
// refused and changes nothing, even if a group was added later.
func TestSchedulesOfGroups(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in, sgd := sgdOfGroups(b)
	s, err := optim.NewScheduler(sgd, optim.ExponentialLR{Gamma: 0.5}, optim.OneCycleLR{Max: 2, Steps: 10, Linear: true, KeepMomentum: true, RiseShare: new(0.5)})
	require.NoError(t, err)
	require.NoError(t, s.SetStep(4))
	require.Equal(t, []float64{1.0 / 16, 2}, ratesOf(sgd))
	for _, bad := range [][]optim.Schedule{nil, {nil}, {optim.ConstantLR{}, nil}, {optim.ConstantLR{}, optim.ConstantLR{}, optim.ConstantLR{}}, {optim.ConstantLR{}, optim.StepLR{}}} {
		_, err := optim.NewScheduler(sgd, bad...)
		require.ErrorIs(t, err, autograd.ErrInvalid)
	}
	require.ErrorIs(t, s.SetStep(11), autograd.ErrInvalid, "the cycle is over")
	require.Equal(t, []float64{1.0 / 16, 2}, ratesOf(sgd))
	r := s.Record()
	require.NoError(t, sgd.AddGroup(autograd.Parameters{{Name: "r", Parameter: in.Parameter([]float64{1})}}, optim.SGDConfig{LR: new(0.25)}))
	require.ErrorContains(t, s.Step(), "2 schedules for 3 groups")
	require.ErrorIs(t, s.CheckRecord(r), autograd.ErrInvalid)
	require.Equal(t, 4, s.LastStep())
	require.NoError(t, in.Close())
}

// TestPlateauRefuses: invalid arguments, metrics and records, and a step in a capture, are refused
// and change nothing.
func TestPlateauRefuses(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in, sgd := sgdOfGroups(b)
	for _, cfg := range []optim.PlateauConfig{{Factor: new(1.0)}, {Factor: new(math.NaN())}, {MinLR: []float64{1, 2, 3}}, {MinLR: []float64{-1}}, {Patience: new(-1)}, {Cooldown: -3}, {Threshold: new(math.NaN())}, {Threshold: new(-1.0)}, {Eps: new(math.Inf(1))}} {
		_, err := optim.NewReduceLROnPlateau(sgd, cfg)
		require.ErrorIs(t, err, autograd.ErrInvalid, "%+v", cfg)
	}
	s, err := optim.NewReduceLROnPlateau(sgd, optim.PlateauConfig{Patience: new(0), MinLR: []float64{0, 0.1}})
	require.NoError(t, err)
	require.NoError(t, s.Step(1))
	before := s.Record()
	require.ErrorIs(t, s.Step(math.Inf(-1)), autograd.ErrInvalid)
	require.Equal(t, before, s.Record())
	_, err = b.RT.Capture(b.Ctx, func(context.Context) error { _ = s.Step(2); return nil })
	require.ErrorIs(t, err, tensor.ErrCapturing)
	require.Equal(t, before, s.Record())
	require.NoError(t, sgd.AddGroup(autograd.Parameters{{Name: "r", Parameter: in.Parameter([]float64{1})}}, optim.SGDConfig{LR: new(0.25)}))
	require.ErrorIs(t, s.Step(2), autograd.ErrInvalid, "two least rates for three groups")
	require.Equal(t, before, s.Record())
	require.Equal(t, []float64{1, 0.5, 0.25}, ratesOf(sgd))
	other, err := optim.NewScheduler(sgd, optim.ConstantLR{})
	require.NoError(t, err)
	require.ErrorIs(t, s.CheckRecord(other.Record()), autograd.ErrInvalid)
	require.ErrorIs(t, other.CheckRecord(s.Record()), autograd.ErrInvalid)
	require.NoError(t, in.Close())
}

// TestPlateauInACheckpoint: a training that was saved after any step and loaded has the rates of
// one that never stopped.
func TestPlateauInACheckpoint(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	metrics := []float64{math.NaN(), 3, 4, 2, 5, 5, 5, 1, 1, 1, 1}
	cfg := optim.PlateauConfig{Patience: new(1), Cooldown: 2, Factor: new(0.5)}
	run := func(stop int) []float64 {
		in, sgd := sgdOfGroups(b)
		defer func() { require.NoError(t, in.Close()) }()
		s, err := optim.NewReduceLROnPlateau(sgd, cfg)
		require.NoError(t, err)
		for i, m := range metrics {
			if i == stop {
				path := filepath.Join(t.TempDir(), "c")
				require.NoError(t, checkpoint.Checkpoint{Optimizer: sgd, Scheduler: s}.Save(b.Ctx, path))
				require.NoError(t, in.Close())
				in, sgd = sgdOfGroups(b)
				s, err = optim.NewReduceLROnPlateau(sgd, cfg)
				require.NoError(t, errors.Join(err, checkpoint.Checkpoint{Optimizer: sgd, Scheduler: s}.Load(b.Ctx, path)))
				assert.Equal(t, stop, s.LastStep())
			}
			require.NoError(t, s.Step(m))
		}
		return ratesOf(sgd)
	}
	whole := run(-1)
	require.Less(t, whole[0], 0.5, "the rate was reduced twice")
	for stop := range metrics {
		require.Equal(t, whole, run(stop), "saved before step %d", stop)
	}
}
