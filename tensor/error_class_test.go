package tensor

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestClassesOfInvalid: a wrong argument is device.ErrInvalid, whatever its class, and the classes stay apart.
func TestClassesOfInvalid(t *testing.T) {
	classes := []error{ErrShape, ErrDtype, ErrRuntime, ErrLabel, ErrIndex}
	for i, class := range classes {
		err := fmt.Errorf("tensor: %w", class)
		require.ErrorIs(t, err, device.ErrInvalid)
		for k, other := range classes {
			require.Equal(t, i == k, errors.Is(err, other))
		}
		require.NotErrorIs(t, device.ErrInvalid, class)
		require.NotErrorIs(t, err, ErrReleased)
	}
	rt, err := Open("host?capacity=1MiB")
	require.NoError(t, err)
	defer rt.Close()
	_, err = rt.New(t.Context(), Float32, -1)
	require.ErrorIs(t, err, ErrShape)
	require.ErrorIs(t, err, ErrInvalid)
}
