package memcache

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestRangesAreAsLongAsPyTorchs: as many granules as are needed for 9/8 of the device.
func TestRangesAreAsLongAsPyTorchs(t *testing.T) {
	for _, f := range []struct{ total, small, large int64 }{
		{160 * mib, 180 * mib, 180 * mib}, // both fit exactly
		{1024 * mib, 1152 * mib, 1160 * mib},
		{1000*mib + 1, 1126 * mib, 1140 * mib},
	} {
		dev := newScripted(f.total)
		c, err := New(dev, Config{ExpandableSegments: true, Exact: true})
		require.NoError(t, err)
		s := dev.stream(1)
		mustAlloc(t, c, 1, s)
		mustAlloc(t, c, 2*mib, s)
		var lengths []int64
		for _, bytes := range dev.reserved {
			lengths = append(lengths, bytes)
		}
		require.ElementsMatch(t, []int64{f.small, f.large}, lengths, "%d bytes", f.total)
	}
}

// reserves counts the reservations, and fails a number of mappings and all reservations above a
// size.
func reserves(dev *scripted, maps int) (count *int) {
	count = new(int)
	dev.gate = func(_ context.Context, call string) error {
		switch {
		case call == "Reserve":
			*count++
		case call == "Map" && maps > 0:
			maps--
			return &device.Error{Op: call, Device: "scripted", Err: device.ErrOutOfMemory}
		}
		return nil
	}
	return count
}

// TestRangeStaysWhenItsFirstMappingFails: the retry after the flush, and later requests, map into
// the range that was reserved for the first attempt.
func TestRangeStaysWhenItsFirstMappingFails(t *testing.T) {
	for _, exact := range []bool{false, true} {
		c, dev := newCache(t, Config{ExpandableSegments: true, Exact: exact})
		s := dev.stream(1)
		count := reserves(dev, 1)
		mustAlloc(t, c, 30*mib, s)
		require.Equal(t, 1, *count)
		require.EqualValues(t, 1, c.Stats().NumAllocRetries)

		other := dev.stream(2)
		count = reserves(dev, 2)
		_, err := c.Alloc(t.Context(), 30*mib, other)
		require.ErrorIs(t, err, ErrOutOfMemory)
		require.Equal(t, 1, *count)
		require.NoError(t, c.EmptyCache(t.Context()))
		b := mustAlloc(t, c, 30*mib, other)
		require.Equal(t, 1, *count)

		// A range that had memory and has none any more is returned.
		require.NoError(t, b.Free())
		require.Len(t, dev.reserved, 2)
		require.NoError(t, c.EmptyCache(t.Context()))
		require.Len(t, dev.reserved, 1)
		require.NoError(t, c.check())
		require.Error(t, c.Close(), "a block is live")
		require.Empty(t, dev.reserved)
	}
}

// TestUnusedRangesMakeRoom: where addresses are scarce, ranges without memory are returned before a
// request fails for lack of addresses.
func TestUnusedRangesMakeRoom(t *testing.T) {
	c, dev := newCache(t, Config{ExpandableSegments: true}) // 1 GiB
	failing := true
	dev.gate = func(_ context.Context, call string) error {
		if call == "Map" && failing || call == "Reserve" && len(dev.reserved) > 0 {
			return &device.Error{Op: call, Device: "scripted", Err: device.ErrOutOfMemory}
		}
		return nil
	}
	_, err := c.Alloc(t.Context(), 30*mib, dev.stream(1))
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.Len(t, dev.reserved, 1)
	failing = false
	b := mustAlloc(t, c, 30*mib, dev.stream(2))
	require.Len(t, dev.reserved, 1)
	require.NoError(t, errors.Join(c.check(), b.Free(), c.Close()))
}
