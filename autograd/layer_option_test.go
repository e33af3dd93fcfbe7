package autograd_test

import (
	"testing"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
)

func TestLayerOptions(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := autograd.Init(b.Ctx, b.RT, autograd.Seed(1))
	defer in.Close()
	l := in.Linear(3, 2, autograd.NoBias(), nil)
	require.NoError(t, in.Err())
	assert.Nil(t, l.Bias)
	assert.Len(t, l.Parameters(), 1)
	in.Linear(3, 2, autograd.NoBias(), autograd.Groups(2))
	require.ErrorIs(t, in.Err(), autograd.ErrInvalid)
	assert.ErrorContains(t, in.Err(), "Linear(3, 2): invalid argument: the layer takes no option Groups: want NoBias")
}
