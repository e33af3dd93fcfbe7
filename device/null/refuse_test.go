package null

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestCallsOvertakenByClose: a call that began before Close and finds its memory gone returns that
// the device is closed.
func TestCallsOvertakenByClose(t *testing.T) {
	d, err := New(Config{})
	require.NoError(t, err)
	why := self.Invalid("Free", 0, "why")
	require.Equal(t, why, d.refuse("Free", why))
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	require.NoError(t, d.Close())
	require.ErrorIs(t, d.refuse("Free", why), device.ErrClosed)
	require.ErrorIs(t, d.pin("Register", make([]byte, 8), registered), device.ErrClosed)
	require.ErrorIs(t, s.(*Stream).shut("Memset"), device.ErrClosed)
}
