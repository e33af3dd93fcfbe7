package autograd

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLayerOptions(t *testing.T) {
	b := open(t, 64<<20)
	in := Init(b.ctx, b.rt, Seed(1))
	defer in.Close()
	l := in.Linear(3, 2, NoBias(), nil)
	require.NoError(t, in.Err())
	assert.Nil(t, l.Bias)
	assert.Len(t, l.Parameters(), 1)
	in.Linear(3, 2, NoBias(), Groups(2))
	require.ErrorIs(t, in.Err(), ErrInvalid)
	assert.ErrorContains(t, in.Err(), "Linear(3, 2): invalid argument: the layer takes no option Groups: want NoBias")
}
