package trace_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/transfer"
)

// TestInvalidIsOneClass: whichever layer finds a wrong argument, its error is of the class of every
// layer.
func TestInvalidIsOneClass(t *testing.T) {
	dev, err := device.Open("host")
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()

	errs := map[string]error{}
	_, errs["device"] = device.Open("host?capacity=none")
	_, errs["host"] = dev.Alloc(-1)
	_, errs["memcache"] = memcache.ParseConfig("max_split_size_mb:none")
	_, errs["transfer"] = transfer.New(nil, transfer.Config{})
	_, errs["tensor"] = tensor.NewRuntime(nil, nil, nil)
	errs["autograd"] = optim.NewAdam(nil, optim.AdamConfig{LR: new(-1.0)}).Err()
	_, errs["trace"] = trace.New(trace.Config{AllEvery: -1})
	for found, err := range errs {
		for _, class := range []error{device.ErrInvalid, memcache.ErrInvalid, transfer.ErrInvalid, tensor.ErrInvalid,
			autograd.ErrInvalid, trace.ErrInvalid} {
			require.ErrorIs(t, err, class, found)
		}
		require.NotErrorIs(t, err, device.ErrClosed, found)
	}
}
