package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/cuda"
)

// TestOpenSaysWhy: without a GPU, or in a program without the tag, the error describes the reason.
func TestOpenSaysWhy(t *testing.T) {
	d, err := device.Open("cuda:0")
	if err == nil {
		require.NoError(t, d.Close())
		t.Skip("the machine has a GPU")
	}
	t.Log(err)
	var e *device.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "cuda:0", e.Device)
	require.NotEmpty(t, e.Detail)
}
