package host

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestLargeBatch: the time to queue a batch grows linearly with its ranges.
func TestLargeBatch(t *testing.T) {
	const n = 40_000
	d, err := New(Config{Capacity: n})
	require.NoError(t, err)
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	p, err := d.Alloc(n)
	require.NoError(t, err)
	b, err := d.AllocPinned(n)
	require.NoError(t, err)
	dst, src := make([][]byte, n), make([]device.Ptr, n)
	for i := range n {
		dst[i], src[i] = b[i:i+1], p+device.Ptr(n-1-i)
	}
	all, err := d.Bytes(p, n)
	require.NoError(t, err)
	for i := range all {
		all[i] = byte(i)
	}
	begin := time.Now()
	require.NoError(t, s.(device.BatchCopier).CopyD2HBatch(dst, src))
	require.Less(t, time.Since(begin), 2*time.Second) // it takes some 10 ms
	require.NoError(t, s.Close())
	for i := range all {
		require.Equal(t, all[n-1-i], b[i])
	}
	require.NoError(t, d.FreePinned(b))
	require.NoError(t, d.Free(p))
	require.NoError(t, d.Close())
}
