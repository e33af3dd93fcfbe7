package nn_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

func TestLayerOptions(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
	defer in.Close()
	l := in.Linear(3, 2, nn.NoBias(), nil)
	require.NoError(t, in.Err())
	assert.Nil(t, l.Bias)
	assert.Len(t, l.Parameters(), 1)
	in.Linear(3, 2, nn.NoBias(), nn.Groups(2))
	require.ErrorIs(t, in.Err(), autograd.ErrInvalid)
	assert.ErrorContains(t, in.Err(), "Linear(3, 2): invalid argument: the layer takes no option Groups: want NoBias")
}
