package device_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

func TestErrorText(t *testing.T) {
	for _, c := range []struct {
		err  device.Error
		want string
	}{
		{device.Error{Op: "Alloc", Device: "cuda:0", Bytes: 3 << 20, Code: device.CodeOutOfMemory, Detail: "1 MiB is free",
			Err: device.ErrOutOfMemory},
			"device: Alloc of 3.0 MiB on cuda:0: out of memory (code 2): 1 MiB is free"},
		{device.Error{Op: "Free", Device: "host", Err: device.ErrClosed}, "device: Free on host: closed"},
		{device.Error{Op: "Launch", Device: "host", Code: 719, Err: device.ErrSticky},
			"device: Launch on host: device is unusable after an earlier error (code 719)"},
	} {
		require.Equal(t, c.want, c.err.Error())
	}
}

func TestErrorIsOfItsClass(t *testing.T) {
	classes := []error{device.ErrOutOfMemory, device.ErrClosed, device.ErrInvalid, device.ErrNotPinned,
		device.ErrNoBackend, device.ErrSticky}
	for _, class := range classes {
		err := fmt.Errorf("above: %w", &device.Error{Op: "X", Device: "host", Code: 5, Err: class})
		for _, other := range classes {
			require.Equal(t, class == other, errors.Is(err, other))
		}
		var e *device.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, 5, e.Code)
	}
}
