package host

import (
	"errors"
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestReserveMakesOneSlice: a second one, for the alignment, would be garbage as large as the
// device.
func TestReserveMakesOneSlice(t *testing.T) {
	const size = 256 << 20
	d, err := New(Config{Capacity: size})
	require.NoError(t, err)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p, err := d.Reserve(size)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(size+2*granularity))
	require.NoError(t, d.Unreserve(p))
	require.NoError(t, d.Close())
}

// TestRefusedMappings: the error gives the reason: a range outside of a reservation, or a mapped
// part. A refused mapping takes no memory.
func TestRefusedMappings(t *testing.T) {
	d, err := New(Config{Capacity: 64 << 20})
	require.NoError(t, err)
	p, err := d.Reserve(8 << 20)
	require.NoError(t, err)
	require.NoError(t, d.Map(p+2<<20, 2<<20))
	require.ErrorContains(t, d.Map(p, 8<<20), "part of the range of 8388608 bytes is mapped already")
	require.ErrorContains(t, d.Map(p+4<<20, 6<<20), "not inside one reservation")
	free, total, err := d.MemInfo()
	require.NoError(t, err)
	require.EqualValues(t, 2<<20, total-free)
	require.NoError(t, errors.Join(d.Unmap(p+2<<20, 2<<20), d.Unreserve(p), d.Close()))
}

// TestAligned: the slice has the requested length and alignment, and no spare capacity.
func TestAligned(t *testing.T) {
	for _, align := range []int64{1, 256, 8 << 10, 16 << 10, 2 << 20} {
		for _, bytes := range []int64{1, 100, 70000} {
			b := aligned(bytes, align)
			require.Equal(t, []int64{bytes, bytes, 0}, []int64{int64(len(b)), int64(cap(b)), int64(uintptr(unsafe.Pointer(&b[0]))) % align})
		}
	}
}

// TestNoBytes: Bytes returns nil for zero bytes at any address.
func TestNoBytes(t *testing.T) {
	d, err := New(Config{Capacity: 1 << 20})
	require.NoError(t, err)
	b, err := d.Bytes(12345, 0)
	require.NoError(t, err)
	require.Empty(t, b)
	_, err = d.Bytes(12345, -1)
	require.ErrorIs(t, err, device.ErrInvalid)
	require.NoError(t, d.Close())
}
