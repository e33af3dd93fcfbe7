package host

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestAccountsToTheByte: allocated, mapped, reserved and pinned bytes are counted separately, also
// when a call fails.
func TestAccountsToTheByte(t *testing.T) {
	const g = granularity
	d, err := New(Config{Capacity: 4 * g})
	require.NoError(t, err)
	d.mem.pinnable = 1000
	accounts := func(startedStream, reserved, pinned int64) {
		t.Helper()
		require.Equal(t, []int64{startedStream, reserved, pinned}, []int64{d.mem.used, d.mem.reserved, d.mem.pinnedBytes})
	}
	a, err := d.AllocPinned(600)
	require.NoError(t, err)
	_, err = d.AllocPinned(401)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
	require.ErrorContains(t, err, "asked for 401 bytes, 400 of 1000 are free")
	b, err := d.AllocPinned(400)
	require.NoError(t, err)
	mine := make([]byte, 5000)
	require.NoError(t, d.Register(mine))
	accounts(0, 0, 1000)
	require.NoError(t, d.FreePinned(a))
	accounts(0, 0, 400)
	d.Fail(FaultPinned, 1)
	_, err = d.AllocPinned(0)
	require.ErrorIs(t, err, device.ErrInvalid)
	_, err = d.AllocPinned(601)
	require.ErrorContains(t, err, "asked for 601 bytes")
	_, err = d.AllocPinned(600)
	require.ErrorContains(t, err, "asked for 600 bytes, 600 of 1000 are free")
	accounts(0, 0, 400)
	require.NoError(t, d.FreePinned(b))
	require.NoError(t, d.Unregister(mine))
	accounts(0, 0, 0)

	p, err := d.Alloc(100)
	require.NoError(t, err)
	r, err := d.Reserve(4 * g)
	require.NoError(t, err)
	require.NoError(t, d.Map(r, 2*g))
	accounts(2*g+100, 4*g, 0)
	require.ErrorIs(t, d.Map(r+g, 2*g), device.ErrOutOfMemory)
	require.ErrorIs(t, d.Map(r+g, g), device.ErrInvalid)
	require.ErrorIs(t, d.Map(r+4*g, g), device.ErrInvalid)
	d.Fail(FaultMap, 1)
	require.ErrorIs(t, d.Map(r+1, g), device.ErrInvalid)
	require.ErrorIs(t, d.Map(r+g, g), device.ErrInvalid)
	require.ErrorIs(t, d.Map(r+2*g, g), device.ErrOutOfMemory)
	require.NoError(t, d.Map(r+2*g, g), "refused calls did not count")
	require.NoError(t, d.Unmap(r+2*g, g))
	d.Fail(FaultAlloc, 1)
	_, err = d.Alloc(g)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
	accounts(2*g+100, 4*g, 0)
	_, err = d.Alloc(2*g - 100)
	require.NoError(t, err, "all of it")
	_, err = d.Alloc(1)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
	require.NoError(t, d.Free(p))
	require.NoError(t, d.Unmap(r, 2*g))
	accounts(2*g-100, 4*g, 0)
	require.NoError(t, d.Unreserve(r))
	accounts(2*g-100, 0, 0)
	require.ErrorContains(t, d.Close(), "1 allocations (Free) of 4.0 MiB")
}

// TestPieceThatNoSliceHolds: a size beyond a slice's limit is out of memory, however much is free.
func TestPieceThatNoSliceHolds(t *testing.T) {
	d, err := New(Config{Capacity: 1 << 20})
	require.NoError(t, err)
	d.mem.capacity, d.mem.pinnable, d.mem.reservable, d.mem.piece = 1<<62, 1<<62, 1<<62, maxPiece
	const most = maxPiece / granularity * granularity
	_, err = d.Alloc(most + granularity)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
	_, err = d.AllocPinned(most + granularity)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
	_, err = d.Reserve(most + granularity)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
	require.NoError(t, d.Close())
}

// TestLargerThanTheMachine: a device may be larger than the machine's RAM, but a piece of it may
// not, because it would end the process.
func TestLargerThanTheMachine(t *testing.T) {
	ram := ramBytes()
	if ram == 0 || ram >= maxCapacity/16 {
		t.Skip("the size of the machine is not known, or larger than all devices")
	}
	d, err := New(Config{Capacity: maxCapacity})
	require.NoError(t, err)
	for _, bytes := range []int64{ram + granularity, maxCapacity / 4} {
		bytes = bytes / granularity * granularity
		_, err = d.Alloc(bytes)
		require.ErrorIs(t, err, device.ErrOutOfMemory)
		_, err = d.AllocPinned(bytes)
		require.ErrorIs(t, err, device.ErrOutOfMemory)
		_, err = d.Reserve(bytes)
		require.ErrorIs(t, err, device.ErrOutOfMemory)
	}
	p, err := d.Alloc(100)
	require.NoError(t, err)
	require.NoError(t, d.Free(p))
	require.NoError(t, d.Close())
}

// TestReservationsInAnyOrder: each reservation can be freed wherever it is in the list; its
// neighbours stay.
func TestReservationsInAnyOrder(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}} {
		d, err := New(Config{Capacity: 16 * granularity})
		require.NoError(t, err)
		var all []device.Ptr
		for range 4 {
			p, err := d.Reserve(granularity)
			require.NoError(t, err)
			all = append(all, p)
		}
		for n, i := range order {
			require.NoError(t, d.Unreserve(all[i]))
			require.ErrorIs(t, d.Unreserve(all[i]), device.ErrInvalid)
			for _, left := range order[n+1:] {
				require.NoError(t, d.Map(all[left], granularity))
				require.ErrorIs(t, d.Unreserve(all[left]), device.ErrInvalid)
				require.NoError(t, d.Unmap(all[left], granularity))
			}
		}
		require.NoError(t, d.Close())
	}
}

// TestAdjacentReservations: mappings in two reservations are not one range, even if their addresses
// are adjacent.
func TestAdjacentReservations(t *testing.T) {
	const g = granularity
	d, err := New(Config{Capacity: 8 * g})
	require.NoError(t, err)
	data := aligned(2*g, g)
	p := device.Ptr(address(data))
	for _, i := range []int{1, 0} {
		part := data[i*g : (i+1)*g : (i+1)*g]
		require.True(t, d.mem.reserve(&reservation{base: address(part), data: part}))
		if i == 0 {
			require.NoError(t, d.Map(p+g, g), "the first ends where the second begins")
			require.NoError(t, d.Unmap(p+g, g))
		}
	}
	require.ErrorIs(t, d.Map(p, 2*g), device.ErrInvalid)
	require.NoError(t, d.Map(p, g))
	require.NoError(t, d.Map(p+g, g))
	_, err = d.Bytes(p, 2*g)
	require.ErrorIs(t, err, device.ErrInvalid)
	require.ErrorIs(t, d.Unmap(p, 2*g), device.ErrInvalid)
	require.NoError(t, d.Unmap(p, g))
	require.NoError(t, d.Unmap(p+g, g))
	require.NoError(t, d.Unreserve(p))
	require.NoError(t, d.Unreserve(p+g))
	require.NoError(t, d.Close())
}

// TestOneOfManyCallsFails: of concurrent calls only the one that is selected fails.
func TestOneOfManyCallsFails(t *testing.T) {
	const goroutines, each = 8, 100_000
	d, err := New(Config{Capacity: 1 << 20})
	require.NoError(t, err)
	for range 10 { // on a busy machine calls rarely overlap
		d.oneFails(t, goroutines, each)
	}
	require.NoError(t, d.Close())
}

// oneFails makes concurrent calls, of which the last one must fail.
func (d *Device) oneFails(t *testing.T, goroutines, each int) {
	t.Helper()
	d.Fail(FaultCopy, goroutines*each)
	failed := make(chan int)
	for range goroutines {
		go func() {
			n := 0
			for range each {
				if d.fails(FaultCopy) {
					n++
				}
			}
			failed <- n
		}()
	}
	sum := 0
	for range goroutines {
		sum += <-failed
	}
	require.Equal(t, 1, sum)
	require.False(t, d.fails(FaultCopy))
}

// TestTableAgainstAList compares random insertions, look-ups and removals with a list that is
// searched linearly.
func TestTableAgainstAList(t *testing.T) {
	var mem table
	mem.init(1<<30, 1<<30)
	space := make([]byte, 64*16)
	var model []*segment
	at := func(i int) uintptr { return address(space[i:]) }
	for step := range 4000 {
		i := step * 7919 % 61 * 16
		n := 1 + step*31%48
		s := new(table).newSegment(registered, space[i:i+n])
		overlaps := slices.ContainsFunc(model, func(o *segment) bool { return o.base < s.end() && s.base < o.end() })
		require.Equal(t, !overlaps, mem.insert(s))
		if !overlaps {
			model = append(model, s)
		}
		if len(model) > 12 {
			k := step % len(model)
			mem.remove(mem.above(model[k].base), 1)
			model = slices.Delete(model, k, k+1)
		}
		for _, s := range model {
			found := mem.find(s.base, registered) == s && mem.segs[mem.above(s.end()-1)] == s
			if !found || mem.find(s.base, pinned) != nil || mem.find(s.base+1, registered) != nil {
				t.Fatalf("segment %#x to %#x is not found, or found as what it is not, in step %d",
					s.base, s.end(), step)
			}
		}
		require.Equal(t, len(model), mem.n)
		for _, rest := range mem.segs[mem.n:] {
			require.Nil(t, rest, "what is removed is garbage")
		}
	}
	require.Zero(t, mem.above(at(0)-1))
}

// TestCloseLeavesOutWhatIsBeingFreed: memory for which a Free waits is not leftover memory.
func TestCloseLeavesOutWhatIsBeingFreed(t *testing.T) {
	d, err := New(Config{Capacity: 1 << 20})
	require.NoError(t, err)
	p, err := d.Alloc(100)
	require.NoError(t, err)
	_, err = d.Alloc(200)
	require.NoError(t, err)
	d.mem.find(inProcess(p), allocated).dying = true
	require.ErrorContains(t, d.Close(), "1 allocations (Free) of 200 B")
}

// TestAddressesBeyondTheProcess: on 32-bit machines a 64-bit address does not become a different
// one.
func TestAddressesBeyondTheProcess(t *testing.T) {
	d, err := New(Config{Capacity: 1 << 20})
	require.NoError(t, err)
	p, err := d.Alloc(100)
	require.NoError(t, err)
	far := p + 1<<32
	_, err = d.Bytes(far, 100)
	require.ErrorIs(t, err, device.ErrInvalid)
	require.ErrorIs(t, d.Free(far), device.ErrInvalid)
	require.NoError(t, d.Free(p))
	require.NoError(t, d.Close())
}
