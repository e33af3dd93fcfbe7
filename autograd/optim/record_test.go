package optim_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// twoGroups returns an Adam of two parameters, each in its own group.
func twoGroups(t *testing.T, b *tapetest.Bench) (*optim.Adam, [2]*autograd.Parameter) {
	p, q := b.Parameter(1, 2), b.Parameter(3)
	adam := optim.NewAdam(autograd.Parameters{{Name: "p", Parameter: p}}, optim.AdamConfig{LR: new(0.5), AMSGrad: true})
	require.NoError(t, adam.Err())
	t.Cleanup(func() { assert.NoError(t, adam.Close()) })
	require.NoError(t, adam.AddGroup(autograd.Parameters{{Name: "q", Parameter: q}}, optim.AdamConfig{LR: new(0.25)}))
	return adam, [2]*autograd.Parameter{p, q}
}

// TestRecords: Restore sets an optimiser to a record, and a record that does not fit is refused.
func TestRecords(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	adam, ps := twoGroups(t, b)
	b.Step(adam, ps[0], 1)
	b.Step(adam, ps[0], 1)
	b.Step(adam, ps[1], 1)
	require.NoError(t, adam.Groups()[1].SetLR(0.125))
	r := adam.Record()
	want := optim.Record{
		Kind: "Adam", Steps: []int{2, 1}, Tensors: []int{3, 2},
		Groups: []optim.GroupRecord{{Parameters: 1, LR: 0.5, Momentum: 0.9}, {Parameters: 1, LR: 0.125, Momentum: 0.9}},
	}
	require.Equal(t, want, r)
	other, _ := twoGroups(t, b)
	require.NoError(t, other.Restore(b.Ctx, r))
	require.Equal(t, r, other.Record())

	for name, wrong := range map[string]func(r *optim.Record){
		"kind":                func(r *optim.Record) { r.Kind = "SGD" },
		"groups":              func(r *optim.Record) { r.Groups = r.Groups[:1] },
		"steps":               func(r *optim.Record) { r.Steps = r.Steps[:1] },
		"tensors":             func(r *optim.Record) { r.Tensors = append(r.Tensors, 0) },
		"group's size":        func(r *optim.Record) { r.Groups[1].Parameters = 2 },
		"rate":                func(r *optim.Record) { r.Groups[1].LR = -1 },
		"momentum":            func(r *optim.Record) { r.Groups[0].Momentum = 1 },
		"momentum, no number": func(r *optim.Record) { r.Groups[1].Momentum = math.NaN() },
		"too many states":     func(r *optim.Record) { r.Tensors[1] = 3 },
		"negative states":     func(r *optim.Record) { r.Tensors[0] = -1 },
		"negative steps":      func(r *optim.Record) { r.Steps[0] = -1 },
	} {
		bad := optim.Record{Kind: r.Kind, Groups: slices.Clone(r.Groups), Steps: slices.Clone(r.Steps), Tensors: slices.Clone(r.Tensors)}
		wrong(&bad)
		assert.ErrorIs(t, other.CheckRecord(bad), autograd.ErrInvalid, name)
		assert.ErrorIs(t, other.Restore(b.Ctx, bad), autograd.ErrInvalid, name)
		assert.Equal(t, r, other.Record(), name)
	}
}

// TestSchedulerRecords: a scheduler continues at the step of a record.
func TestSchedulerRecords(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	adam, _ := twoGroups(t, b)
	s, err := optim.NewScheduler(adam, optim.ExponentialLR{0.5})
	require.NoError(t, err)
	require.NoError(t, s.Step())
	r := s.Record()
	require.Equal(t, optim.SchedulerRecord{Step: 1, Base: []float64{0.5, 0.25}}, r)

	other, _ := twoGroups(t, b)
	require.NoError(t, other.SetLR(7))
	next, err := optim.NewScheduler(other, optim.ExponentialLR{0.5})
	require.NoError(t, err)
	require.NoError(t, next.CheckRecord(r))
	next.Restore(r)
	require.NoError(t, next.Step())
	assert.Equal(t, []float64{0.125, 0.0625}, []float64{other.Groups()[0].LR(), other.Groups()[1].LR()})
	assert.ErrorIs(t, next.CheckRecord(optim.SchedulerRecord{Step: -1, Base: r.Base}), autograd.ErrInvalid)
	assert.ErrorIs(t, next.CheckRecord(optim.SchedulerRecord{Step: 1, Base: r.Base[:1]}), autograd.ErrInvalid)
}
