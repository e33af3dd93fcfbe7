package memcache

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRounding(t *testing.T) {
	for _, c := range []struct{ bytes, block, segment int64 }{
		{-1, 0, 0}, {0, 0, 0},
		{1, 512, 2 << 20}, {512, 512, 2 << 20}, {513, 1024, 2 << 20},
		{1 << 20, 1 << 20, 2 << 20}, {1<<20 + 1, 1_049_088, 20 << 20},
		{10<<20 - 512, 10<<20 - 512, 20 << 20}, {10<<20 - 1, 10 << 20, 10 << 20}, {10 << 20, 10 << 20, 10 << 20},
		{10<<20 + 1, 10<<20 + 512, 12 << 20}, {33<<20 + 7, 33<<20 + 512, 34 << 20},
	} {
		require.Equal(t, c.block, Config{}.RoundSize(c.bytes), "%d bytes", c.bytes)
		require.Equal(t, c.segment, Config{}.SegmentSize(c.bytes), "%d bytes", c.bytes)
	}
}

// TestSplitting allocates from fresh segments.
func TestSplitting(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct{ request, block int64 }{
		{3 * mib, 3 * mib},               // 17 MiB of 20 stay
		{11*mib + mib/2, 12 * mib},       // the rest of half a MiB is not worth keeping
		{12*mib + mib/2, 12*mib + mib/2}, // 1.5 MiB of 14 stay
		{33*mib + 7, 34 * mib},           // the rest of 1,048,064 bytes is not more than 1 MiB
		{13 * mib, 14 * mib},             // nor is a rest of 1 MiB
		{13*mib - 512, 13*mib - 512},     // but 512 bytes more are
		{2*mib/2 - 512, mib - 512},       // small: every rest from 512 bytes on
		{mib, mib},
	} {
		cache, err := New(newScripted(1<<40), Config{})
		require.NoError(t, err)
		b, err := cache.Alloc(context.Background(), c.request, cache.dev.(*scripted).stream(1))
		require.NoError(t, err)
		require.Equal(t, c.block, b.Size(), "%d bytes", c.request)
		require.Equal(t, c.block, cache.MemoryAllocated())
	}
}

// TestWorkedExample is a sequence of calls whose figures PyTorch 2.11 printed.
func TestWorkedExample(t *testing.T) {
	dev := newScripted(1 << 40)
	cache, err := New(dev, Config{Exact: true})
	require.NoError(t, err)
	s := dev.stream(0)
	blocks := map[string]Block{}
	for _, step := range []struct {
		name                                                              string
		bytes, offset, block                                              int64
		allocated, requested, reserved, inactive, inactiveBytes, segments int64
	}{
		{"a", 100, 0, 512, 512, 100, 2097152, 1, 2096640, 1},
		{"b", 1 << 20, 512, 1048576, 1049088, 1048676, 2097152, 1, 1048064, 1},
		{"c", 1 << 20, 2 << 20, 1048576, 2097664, 2097252, 4194304, 2, 2096640, 2},
		{"a", 0, 0, 0, 2097152, 2097152, 4194304, 3, 2097152, 2},
		{"b", 0, 0, 0, 1048576, 1048576, 4194304, 1, 1048576, 2},
		{"d", 3 << 20, 4 << 20, 3145728, 4194304, 4194304, 25165824, 2, 18874368, 3},
		{"e", 23 << 19, 7 << 20, 12058624, 16252928, 16252928, 25165824, 2, 6815744, 3},
		{"", 0, 0, 0, 16252928, 16252928, 23068672, 2, 6815744, 3},
	} {
		switch {
		case step.name == "":
			require.NoError(t, cache.EmptyCache(context.Background()))
		case step.bytes == 0:
			require.NoError(t, blocks[step.name].Free())
		default:
			b, err := cache.Alloc(context.Background(), step.bytes, s)
			require.NoError(t, err)
			blocks[step.name] = b
			require.Equal(t, step.offset, int64(b.Ptr())-1<<40)
			require.Equal(t, step.block, b.Size())
		}
		st := cache.Stats()
		require.Equal(t,
			[]int64{step.allocated, step.requested, step.reserved, step.inactive, step.inactiveBytes, step.segments},
			[]int64{st.AllocatedBytes.All.Current, st.RequestedBytes.All.Current, st.ReservedBytes.All.Current,
				st.InactiveSplit.All.Current, st.InactiveSplitBytes.All.Current, st.NumDeviceAlloc}, "after %q", step.name)
	}
	st := cache.Stats()
	require.EqualValues(t, 1, st.NumDeviceFree)
	require.EqualValues(t, 1, st.NumSyncAllStreams)
}
