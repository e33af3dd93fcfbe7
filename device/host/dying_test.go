package host

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// dying starts a call of Free or Unmap and returns when the call waits. end lets the call continue.
func dying(t *testing.T, d *Device, s device.Stream, p device.Ptr, free func() error) (end func()) {
	gate, freed := make(chan struct{}), make(chan error, 1)
	require.NoError(t, s.Launch(&device.Launch{Func: func() { <-gate }, Reads: []device.Range{{Ptr: p, Bytes: 1}}}))
	go func() { freed <- free() }()
	seg := d.mem.segs[d.mem.above(inProcess(p))]
	for !seg.await.Load() {
		select {
		case err := <-freed:
			require.NoError(t, err)
			require.Fail(t, "it did not wait")
		default:
		}
	}
	return func() {
		close(gate)
		require.NoError(t, <-freed)
	}
}

// TestNothingNamesWhatIsBeingFreed: no operation can name memory for which a Free waits, and no
// call can free it again. Bytes finds it until it is freed.
func TestNothingNamesWhatIsBeingFreed(t *testing.T) {
	const g = granularity
	d, err := New(Config{Capacity: 8 * g})
	require.NoError(t, err)
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	p, err := d.Alloc(100)
	require.NoError(t, err)
	end := dying(t, d, s, p, func() error { return d.Free(p) })
	_, err = d.Bytes(p, 1)
	require.NoError(t, err, "the kernel that Free waits for needs it")
	require.ErrorIs(t, s.Memset(p, 0, 1), device.ErrInvalid)
	require.ErrorIs(t, d.Free(p), device.ErrInvalid)
	end()
	_, err = d.Bytes(p, 1)
	require.ErrorIs(t, err, device.ErrInvalid)

	r, err := d.Reserve(3 * g)
	require.NoError(t, err)
	for i := range 3 {
		require.NoError(t, d.Map(r+device.Ptr(i*g), g))
	}
	end = dying(t, d, s, r+g, func() error { return d.Unmap(r+g, g) })
	_, err = d.Bytes(r, g)
	require.NoError(t, err)
	require.ErrorIs(t, s.Memset(r, 0, g+1), device.ErrInvalid, "the second mapping goes")
	data, err := d.Bytes(r, g+1)
	require.NoError(t, err)
	require.Len(t, data, g+1)
	require.ErrorIs(t, d.Unmap(r+g, g), device.ErrInvalid)
	require.ErrorIs(t, d.Unmap(r, 3*g), device.ErrInvalid)
	require.ErrorIs(t, d.Map(r+g, g), device.ErrInvalid)
	end()
	_, err = d.Bytes(r, g+1)
	require.ErrorIs(t, err, device.ErrInvalid)
	require.NoError(t, d.Unmap(r, g))
	require.NoError(t, d.Unmap(r+2*g, g))
	require.NoError(t, d.Unreserve(r))
	require.NoError(t, d.Close())
}

// TestEveryOperationHoldsWhatItNames: until it is done, an operation keeps its source, its
// destination, and each mapping of its ranges.
func TestEveryOperationHoldsWhatItNames(t *testing.T) {
	const g = granularity
	d, err := New(Config{Capacity: 8 * g})
	require.NoError(t, err)
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	p, err := d.Alloc(64)
	require.NoError(t, err)
	q, err := d.Alloc(64)
	require.NoError(t, err)
	b, err := d.AllocPinned(64)
	require.NoError(t, err)
	r, err := d.Reserve(2 * g)
	require.NoError(t, err)
	require.NoError(t, d.Map(r, g))
	require.NoError(t, d.Map(r+g, g))
	uses := func(addr uintptr) int { return int(d.mem.segs[d.mem.above(addr)].uses()) }
	rows := device.Copy2D{Width: 8, Height: 4, DstPitch: 8, SrcPitch: 8}
	up, down, across := rows, rows, rows
	ofOne := 1 // a kernel's two ranges in one allocation have one use
	if race.Enabled {
		ofOne = 2 // race builds keep both
	}
	up.Dst, up.SrcHost, down.DstHost, down.Src, across.Dst, across.Src = p, b, b, p, p, q
	for name, c := range map[string]struct {
		queue func() error
		want  [5]int // of p, q, b and the mappings
	}{
		"Memset":   {func() error { return s.Memset(p, 1, 1) }, [5]int{1}},
		"CopyH2D":  {func() error { return s.CopyH2D(p, b) }, [5]int{1, 0, 1}},
		"CopyD2H":  {func() error { return s.CopyD2H(b, q) }, [5]int{0, 1, 1}},
		"CopyD2D":  {func() error { return s.CopyD2D(p, q, 64) }, [5]int{1, 1}},
		"rows up":  {func() error { return s.Copy2D(&up) }, [5]int{1, 0, 1}},
		"down":     {func() error { return s.Copy2D(&down) }, [5]int{1, 0, 1}},
		"across":   {func() error { return s.Copy2D(&across) }, [5]int{1, 1}},
		"mappings": {func() error { return s.Memset(r, 1, g+1) }, [5]int{0, 0, 0, 1, 1}},
		"batches": {func() error {
			return s.(device.BatchCopier).CopyH2DBatch([]device.Ptr{p, q, p + 8}, [][]byte{b[:8], b[:8], b[8:16]})
		}, [5]int{2, 1, 3}},
		"Launch": {func() error {
			return s.Launch(&device.Launch{Func: func() {}, Reads: []device.Range{{Ptr: p, Bytes: 64}, {Ptr: r + g - 1, Bytes: 2}},
				Writes: []device.Range{{Ptr: q, Bytes: 64}, {Ptr: q, Bytes: 1}, {Ptr: p, Bytes: 0}}})
		}, [5]int{1, ofOne, 0, 1, 1}},
	} {
		gate := make(chan struct{})
		require.NoError(t, s.Launch(&device.Launch{Func: func() { <-gate }}))
		require.NoError(t, c.queue(), name)
		held := [5]int{uses(inProcess(p)), uses(inProcess(q)), uses(address(b)), uses(inProcess(r)), uses(inProcess(r + g))}
		require.Equal(t, c.want, held, name)
		close(gate)
		require.NoError(t, s.Synchronize(t.Context()))
		held = [5]int{uses(inProcess(p)), uses(inProcess(q)), uses(address(b)), uses(inProcess(r)), uses(inProcess(r + g))}
		require.Zero(t, held, name)
	}
	require.ErrorContains(t, d.Close(), "2 allocations (Free) of 128 B, 2 mappings (Unmap) of 4.0 MiB, "+
		"1 reservations (Unreserve) of 4.0 MiB, 1 pinned buffers (FreePinned) of 64 B")
}

// TestOneKindIsNotAnother: an address from Alloc is neither a mapping nor host memory.
func TestOneKindIsNotAnother(t *testing.T) {
	const g = granularity
	d, err := New(Config{Capacity: 8 * g})
	require.NoError(t, err)
	data := aligned(g, g)
	p := device.Ptr(address(data))
	require.True(t, d.mem.add(new(table).newSegment(allocated, data)))
	require.ErrorIs(t, d.Unmap(p, g), device.ErrInvalid)
	_, err = d.MappedPtr(data)
	require.ErrorIs(t, err, device.ErrNotPinned)
	require.ErrorIs(t, d.FreePinned(data), device.ErrInvalid)
	require.ErrorIs(t, d.Unregister(data), device.ErrInvalid)
	d.mem.used += g
	require.NoError(t, d.Free(p))
	d.mem.close()
	require.False(t, d.mem.add(new(table).newSegment(allocated, data)), "nothing comes into a table that is closed")
	require.NoError(t, d.Close())
}
