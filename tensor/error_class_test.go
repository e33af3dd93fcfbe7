package tensor

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestClassesOfInvalid: a wrong argument of each class is device.ErrInvalid, and the classes
// differ.
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
	rt, err := Open("host?capacity=4MiB")
	require.NoError(t, err)
	defer rt.Close()
	_, err = rt.New(t.Context(), Float32, -1)
	require.ErrorIs(t, err, ErrShape)
	require.ErrorIs(t, err, ErrInvalid)
}

// TestString: the text of a runtime is short.
func TestString(t *testing.T) {
	rt, err := Open("host?capacity=4MiB")
	require.NoError(t, err)
	defer rt.Close()
	x, err := rt.New(t.Context(), Float32, 10)
	require.NoError(t, err)
	defer x.Release()
	for _, verb := range []string{"%v", "%+v", "%s"} {
		require.Equal(t, "runtime on host: 1 tensors of 40 bytes", fmt.Sprintf(verb, rt))
	}
	require.Equal(t, "tensor.Runtime(nil)", (*Runtime)(nil).String())
}
