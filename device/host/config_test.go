package host

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

func TestOpen(t *testing.T) {
	for name, capacity := range map[string]int64{
		"host?capacity=2GiB": 2 << 30, "host?capacity=1.5MiB": 3 << 19, "host?capacity=4096": 4096, "host?capacity=10MB": 10_000_000,
	} {
		d, err := device.Open(name)
		require.NoError(t, err, name)
		require.Equal(t, capacity, d.Properties().TotalMemory)
		require.Equal(t, "host", d.Name())
		require.NoError(t, d.Close())
	}
	for name, hint := range map[string]string{
		"host:1":                         `the host device is "host"`,
		"host?size=1GiB":                 "has the options capacity and accessible",
		"host?accessible=maybe":          "neither true nor false",
		"host?capacity=":                 "such as 2GiB",
		"host?capacity=0":                "use a positive one",
		"host?capacity=-5":               "use a positive one",
		"host?capacity=lots":             "use a positive one",
		"host?capacity=NaN":              "use a positive one",
		"host?capacity=1e400EiB":         "use a positive one",
		"host?capacity=8EiB":             "use a positive one",
		"host?capacity=7EiB":             "the largest is",
		"host?capacity=1MB&capacity=2MB": "given 2 times",
	} {
		d, err := device.Open(name)
		require.Nil(t, d, name)
		require.ErrorIs(t, err, device.ErrInvalid, name)
		require.ErrorContains(t, err, hint, name)
	}
}

func TestEachOpenIsADeviceOfItsOwn(t *testing.T) {
	a, err := device.Open("host?capacity=1MiB")
	require.NoError(t, err)
	b, err := device.Open("host?capacity=1MiB")
	require.NoError(t, err)
	require.NotEqual(t, a.ID(), b.ID())
	p, err := a.Alloc(100)
	require.NoError(t, err)
	require.ErrorIs(t, b.Free(p), device.ErrInvalid)
	require.NoError(t, a.Free(p))
	require.NoError(t, a.Close())
	_, err = b.Alloc(1 << 20)
	require.NoError(t, err)
	require.ErrorContains(t, b.Close(), "1 allocations (Free) of 1.0 MiB")
}

func TestDefaultCapacity(t *testing.T) {
	d, err := New(Config{})
	require.NoError(t, err)
	defer d.Close()
	total := d.Properties().TotalMemory
	require.Positive(t, total)
	require.LessOrEqual(t, total, int64(4<<30))
	want := int64(4 << 30)
	if math.MaxInt == math.MaxInt32 {
		want = 1<<30 - 1
	}
	if ram := ramBytes(); ram > 0 {
		want = min(want, ram/2)
	}
	require.Equal(t, want, total)
	for ram, want := range map[int64]int64{0: defaultCapacity, 1 << 30: 512 << 20, 1<<20 + 1: 512 << 10, 1 << 44: defaultCapacity} {
		require.Equal(t, want, defaultFor(ram))
	}
	_, err = New(Config{Capacity: -1})
	require.ErrorIs(t, err, device.ErrInvalid)
	_, err = New(Config{Capacity: math.MaxInt64})
	require.ErrorIs(t, err, device.ErrInvalid)
}

func TestParseMeminfo(t *testing.T) {
	for text, want := range map[string]int64{
		"MemTotal:       16283 kB\nMemFree: 1 kB\n": 16283 * 1024,
		"MemFree: 1 kB\nMemTotal: 5 kB":             5 * 1024,
		"":                                          0,
		"MemTotal: many kB\n":                       0,
		"MemTotal: -4 kB\n":                         0,
		"MemTotal: 9223372036854775807 kB\n":        0,
		"MemTotal: 9007199254740992 kB\n":           0,
		"MemTotal: 9007199254740991 kB\n":           math.MaxInt64 - 1023,
	} {
		require.Equal(t, want, parseMeminfo([]byte(text)), text)
	}
}

// TestReservations: address space is 9/8 of the capacity, and costs nothing until it is mapped.
func TestReservations(t *testing.T) {
	d, err := New(Config{Capacity: 64 << 20})
	require.NoError(t, err)
	_, err = d.Reserve(74 << 20)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
	require.ErrorContains(t, err, "asked for 77594624 bytes, 75497472 of 75497472 are free")
	p, err := d.Reserve(72 << 20)
	require.NoError(t, err)
	require.NoError(t, d.Unreserve(p))
	p, err = d.Reserve(72 << 20)
	require.NoError(t, err)
	_, err = d.Reserve(granularity)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
	require.ErrorIs(t, d.Map(p, 66<<20), device.ErrOutOfMemory)
	require.NoError(t, d.Map(p+(8<<20), 64<<20))
	_, err = d.Alloc(1)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
	require.ErrorContains(t, d.Close(), "1 mappings (Unmap) of 64 MiB, 1 reservations (Unreserve) of 72 MiB")
}

// TestManyStreams: an unused stream costs no goroutine, and a stream that was not busy no queue.
func TestManyStreams(t *testing.T) {
	d, err := New(Config{Capacity: 1 << 20})
	require.NoError(t, err)
	streams := 100_000
	if testing.Short() {
		streams = 20_000
	}
	for range streams {
		_, err := d.NewStream(device.StreamOptions{})
		require.NoError(t, err)
	}
	require.NoError(t, d.Close())
}
