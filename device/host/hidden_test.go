package host

import (
	"math/bits"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/child"
)

func openInaccessible(t testing.TB) *Device {
	t.Helper()
	if bits.UintSize < 64 {
		_, err := New(Config{Inaccessible: true})
		require.ErrorIs(t, err, device.ErrInvalid)
		t.Skip("needs addresses of 64 bits")
	}
	dev, err := device.Open("host?accessible=false&capacity=8MiB")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, dev.Close()) })
	return dev.(*Device)
}

// readAt reads a byte at an address, like a program that mistakes a device address for one of its
// own.
func readAt(p device.Ptr) byte {
	addr := uintptr(p)
	return **(**byte)(unsafe.Pointer(&addr))
}

// TestTouchingInaccessibleMemoryEndsTheProgram runs itself in a process, because the fault can't be
// recovered.
func TestTouchingInaccessibleMemoryEndsTheProgram(t *testing.T) {
	d := openInaccessible(t)
	p, err := d.Alloc(4096)
	require.NoError(t, err)
	r, err := d.Reserve(granularity)
	require.NoError(t, err)
	require.NoError(t, d.Map(r, granularity))
	switch os.Getenv("CISTERN_TOUCH") {
	case "allocated":
		defer func() { _ = recover() }()
		readAt(p)
	case "mapped":
		defer func() { _ = recover() }()
		readAt(r)
	default:
		for _, what := range []string{"allocated", "mapped"} {
			out, err := child.Test("^"+t.Name()+"$", "CISTERN_TOUCH="+what)
			assert.Error(t, err, what)
			assert.Contains(t, out, "fault", what)
		}
	}
	require.NoError(t, d.Unmap(r, granularity))
	require.NoError(t, d.Unreserve(r))
	require.NoError(t, d.Free(p))
}

func TestInaccessibleMemoryIsNamedByItsOwnAddress(t *testing.T) {
	d := openInaccessible(t)
	assert.False(t, d.Properties().Accessible)
	p, err := d.Alloc(4096)
	require.NoError(t, err)
	b, err := d.Bytes(p, 4096)
	require.NoError(t, err)
	_, err = d.Bytes(device.Ptr(address(b)), 4096)
	assert.ErrorIs(t, err, device.ErrInvalid, "the process's address is not the device's")
	assert.ErrorIs(t, d.Free(device.Ptr(address(b))), device.ErrInvalid)
	require.NoError(t, d.Free(p))

	pinned, err := d.AllocPinned(512)
	require.NoError(t, err)
	mapped, err := d.MappedPtr(pinned)
	require.NoError(t, err)
	assert.EqualValues(t, address(pinned), mapped, "pinned memory is the host's")
	require.NoError(t, d.FreePinned(pinned))

	plain, err := New(Config{Capacity: 1 << 20})
	require.NoError(t, err)
	assert.True(t, plain.Properties().Accessible)
	require.NoError(t, plain.Close())
}
