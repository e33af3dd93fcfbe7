//go:build cuda

package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device/cuda"
)

// TestNoAddressIsAnError: if a driver returns success and the address 0, the call returns an error.
func TestNoAddressIsAnError(t *testing.T) {
	require.NoError(t, cuda.HasAddress("cuda:0", "Alloc", 1024, 256))
	require.EqualError(t, cuda.HasAddress("cuda:0", "Alloc", 1024, 0),
		"device: Alloc of 1.0 KiB on cuda:0: the driver returned the address 0 without an error")
}
