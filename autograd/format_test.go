package autograd_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// TestFormat: fmt prints a short description of a model, a tape and an optimiser.
func TestFormat(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT)
	l := in.Linear(2, 3)
	ps := l.Parameters()
	scheduler, err := optim.NewScheduler(nn.Own(in, optim.NewAdam(ps, optim.AdamConfig{})), optim.LambdaLR(func(int) float64 { return 1 }))
	require.NoError(t, err)
	tape := autograd.NewTape(b.Ctx, b.RT)
	x := tape.Param(l.Weight)
	group := tapetest.NewCrew(t, 1, 64<<20, 0)
	r := group.Ranks[0]
	model := nn.Sequential{nn.Init(r.Ctx, r.RT).Linear(1, 1)}
	dp, err := parallel.New(r.Ctx, r.Comm, model, parallel.Config{})
	require.NoError(t, err)
	device := b.RT.Device().Name()
	for _, tt := range []struct {
		value any
		want  string
	}{
		{x, "float32 (3, 2) on " + device},
		{l.Weight, "float32 (3, 2) on " + device},
		{ps, "[weight: float32 (3, 2) on " + device + " bias: float32 (3) on " + device + "]"},
		{tape, "tape of 1 variables"},
		{nn.Own(in, optim.NewSGD(ps, optim.SGDConfig{})), "SGD of 2 parameters, learning rate 0.001"},
		{scheduler, "optim.LambdaLR at step 0 of Adam of 2 parameters, learning rate 0.001"},
		{dp, "rank 0 of 1 on " + r.RT.Device().Name() + ": 2 parameters"},
		{(*autograd.Variable)(nil), "no tensor"}, {(*autograd.Parameter)(nil), "no tensor"}, {autograd.Named{}, ": no tensor"}, {(*autograd.Tape)(nil), "no tape"},
	} {
		for _, verb := range []string{"%v", "%+v", "%s"} {
			require.Equal(t, tt.want, fmt.Sprintf(verb, tt.value))
		}
	}
	require.Contains(t, fmt.Sprint(in), "initializer of ")
	require.NotContains(t, fmt.Sprintf("%+v", nn.Sequential{l, nn.ReLU{}}[0]), "sema")
	require.NoError(t, tape.Close())
	require.NoError(t, dp.Close())
	require.NoError(t, model.Parameters().Release())
	require.NoError(t, in.Close())
}
