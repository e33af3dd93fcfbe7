package memcache

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// liar is a device whose driver returns success with wrong memory.
type liar struct {
	*scripted
	null bool  // the address 0
	less int64 // bytes that are missing
}

func (d *liar) stream(id uint64) liarStream { return liarStream{d.scripted.stream(id), d} }

type liarStream struct {
	*scriptedStream
	dev *liar
}

func (s liarStream) Device() device.Device { return s.dev }

func (d *liar) Alloc(bytes int64) (device.Ptr, error) {
	p, err := d.scripted.Alloc(bytes - d.less)
	if d.null {
		p = 0
	}
	return p, err
}

func (d *liar) Reserve(bytes int64) (device.Ptr, error) {
	p, err := d.scripted.Reserve(bytes - d.less)
	if d.null {
		p = 0
	}
	return p, err
}

// TestDriverThatGivesWhatWasNotAskedFor: the address 0 is refused, and so is memory that overlaps
// earlier memory, such as after a driver has allocated too little. The cache's other memory is
// unaffected.
func TestDriverThatGivesWhatWasNotAskedFor(t *testing.T) {
	for _, config := range []Config{{}, {NoCaching: true}, {ExpandableSegments: true}} {
		dev := &liar{scripted: newScripted(1 << 30), null: true}
		c, err := New(dev, config)
		require.NoError(t, err)
		s, other := dev.stream(1), dev.stream(2)
		_, err = c.Alloc(t.Context(), 4*mib, s)
		require.ErrorContains(t, err, "memcache: Alloc of 4.00 MiB: the driver returned")
		require.NotErrorIs(t, err, ErrOutOfMemory)
		require.Zero(t, c.MemoryReserved())
		dev.null, dev.less = false, 2*mib
		a := mustAlloc(t, c, 4*mib, s)
		_, err = c.Alloc(t.Context(), 4*mib, other)
		require.ErrorContains(t, err, "overlap")
		require.NotErrorIs(t, err, ErrOutOfMemory)
		dev.less = 0
		require.NoError(t, mustAlloc(t, c, 4*mib, other).Free())
		require.NoError(t, c.check())
		require.NoError(t, a.Free())
		require.NoError(t, c.EmptyCache(t.Context()))
	}
}

// TestClaimsAreForgotten: the driver may return addresses again that it has freed.
func TestClaimsAreForgotten(t *testing.T) {
	for _, config := range []Config{{}, {NoCaching: true}, {ExpandableSegments: true}} {
		c, dev := newCache(t, config)
		const at = 512 * mib
		dev.next, dev.bases = []device.Ptr{at, at, 3 * at, at + 40*mib}, []device.Ptr{at, at}
		s := dev.stream(1)
		for range 3 {
			b := mustAlloc(t, c, 20*mib, s)
			require.NoError(t, b.Free())
			require.NoError(t, c.EmptyCache(t.Context()))
			require.Empty(t, c.grower.driverRanges)
		}
	}
	var l driverRanges
	require.NoError(t, l.add(1000, 100))
	require.NoError(t, l.add(1200, 100))
	require.NoError(t, l.add(1100, 100), "what touches does not overlap")
	for _, p := range []device.Ptr{950, 1000, 1001, 1050, 1299} {
		require.Error(t, l.add(p, 100), p)
	}
	require.Error(t, l.add(900, 500))
	require.Error(t, l.add(^device.Ptr(0)-5, 100))
	l.remove(1150)
	l.remove(5000)
	require.Len(t, l, 3)
	l.remove(1100)
	require.NoError(t, l.add(1150, 50))
	require.Equal(t, driverRanges{{1000, 1100}, {1150, 1200}, {1200, 1300}}, l)
}
