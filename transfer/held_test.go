package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// meter is a device that counts the pinned memory that it holds, from the call that allocates it to
// the end of the call that frees it. Hooks that are not nil run in these calls. Memory that a hook
// refuses to free counts as held, but is freed, so that the device below closes with nothing left.
type meter struct {
	device.Device
	allocating func()
	freeing    func() error

	mu         sync.Mutex
	held, peak int64
}

func (d *meter) count(bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held += bytes
	d.peak = max(d.peak, d.held)
}

func (d *meter) most() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.peak
}

func (d *meter) AllocPinned(bytes int64) ([]byte, error) {
	d.count(bytes)
	if d.allocating != nil {
		d.allocating()
	}
	b, err := d.Device.AllocPinned(bytes)
	if err != nil {
		d.count(-bytes)
	}
	return b, err
}

func (d *meter) FreePinned(b []byte) error {
	if d.freeing != nil {
		if err := d.freeing(); err != nil {
			return errors.Join(err, d.Device.FreePinned(b))
		}
	}
	err := d.Device.FreePinned(b)
	if err == nil {
		d.count(-int64(len(b)))
	}
	return err
}

// on makes a pool on another device than the rig's. The rig's cleanup closes it.
func (r *rig) on(t testing.TB, dev device.Device, cfg transfer.Config) {
	t.Helper()
	require.NoError(t, r.pool.Close())
	var err error
	r.pool, err = transfer.New(dev, cfg)
	require.NoError(t, err)
}

// With many goroutines and a slow driver, the driver never holds more than MaxBytes, and in all
// statistics the allocated bytes are the active and the cached ones.
func TestDriverHoldsNoMoreThanMaxBytes(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8)) // as many shards
	const limit = 8 << 10
	for name, wait := range map[string]func(){
		"quick": nil, "yields": runtime.Gosched, "slow": func() { time.Sleep(50 * time.Microsecond) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, transfer.Config{})
			dev := &meter{Device: r.dev, allocating: wait}
			if wait != nil {
				dev.freeing = func() error { wait(); return nil }
			}
			r.on(t, dev, transfer.Config{MaxBytes: limit, MaxCachedBytes: 3 << 10})
			block := r.alloc(t, limit, r.a)
			rounds := 150
			if testing.Short() {
				rounds = 30
			}
			var served atomic.Int64
			var group sync.WaitGroup
			for g := range 16 {
				group.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(g), 1))
					for range rounds {
						n := 1 + rng.Int64N(4<<10)
						b, err := r.pool.Get(background, n)
						if err == nil {
							served.Add(1)
							if n%3 == 0 {
								_, err = r.pool.H2D(background, r.a, block, 0, b, 0, n)
							}
							err = errors.Join(err, b.Release())
						} else if errors.Is(err, transfer.ErrLimit) {
							err = nil
						}
						if err != nil {
							t.Error(err)
						}
						if err := plausible(r.pool.Stats(), limit, 3<<10); err != nil {
							t.Error(err)
						}
					}
				})
			}
			group.Wait()
			require.Positive(t, served.Load())
			require.LessOrEqual(t, dev.most(), int64(limit))
			require.NoError(t, r.pool.EmptyCache(t.Context()))
			require.Zero(t, r.pool.Stats().HeldBytes.Current)
			require.NoError(t, block.Free())
		})
	}
}

// plausible returns an error for statistics that can't be right at any moment.
func plausible(st transfer.Stats, limit, budget int64) error {
	switch {
	case st.AllocatedBytes.Current != st.ActiveBytes.Current+st.CachedBytes.Current:
		return errors.New("what is allocated is not what is active and cached")
	case st.HeldBytes.Current < st.AllocatedBytes.Current || st.HeldBytes.Peak < st.AllocatedBytes.Peak:
		return errors.New("less is held than allocated")
	case st.HeldBytes.Peak > limit:
		return errors.New("more is held than MaxBytes")
	case st.CachedBytes.Peak > budget:
		return errors.New("more is cached than the budget")
	}
	return nil
}

// Memory that the driver is still freeing counts, and a Get that needs it below the limit waits for
// it until its context ends.
func TestGetWaitsForTheDriverToFree(t *testing.T) {
	r := newRig(t, transfer.Config{})
	freeing, gate := make(chan struct{}, 9), make(chan struct{})
	dev := &meter{Device: r.dev, freeing: func() error { freeing <- struct{}{}; <-gate; return nil }}
	r.on(t, dev, transfer.Config{MaxBytes: 4 << 10})
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	require.NoError(t, r.get(t, 4<<10).Release())
	got := make(chan error, 9)
	result := func() error {
		select {
		case err := <-got:
			return err
		case <-time.After(10 * time.Second):
			return errors.New("it waits")
		}
	}
	get := func(ctx context.Context, bytes int64) {
		b, err := r.pool.Get(ctx, bytes)
		got <- errors.Join(err, b.Release())
	}
	long, end := context.WithTimeout(t.Context(), 10*time.Second)
	defer end()
	go get(long, 1<<10) // frees cached memory
	select {
	case <-freeing:
	case err := <-got:
		t.Fatal("nothing is given back", err)
	}
	stat := memcache.Stat{Current: 4 << 10, Peak: 4 << 10, Allocated: 4 << 10}
	require.Equal(t, stat, r.pool.Stats().HeldBytes)
	require.Zero(t, r.pool.Stats().AllocatedBytes.Current)
	r.pool.ResetPeakStats()
	require.Equal(t, stat, r.pool.Stats().HeldBytes)

	ctx, cancel := context.WithCancel(t.Context())
	go get(ctx, 2<<10)
	select {
	case err := <-got:
		t.Fatal("it did not wait", err)
	case <-time.After(20 * time.Millisecond):
	}
	cancel()
	require.ErrorIs(t, result(), context.Canceled)
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := r.pool.Get(ctx, 5<<10) // more than all of it
	require.ErrorIs(t, err, transfer.ErrLimit)
	go get(long, 3<<10)
	time.Sleep(time.Millisecond)
	open()
	require.NoError(t, result())
	require.NoError(t, result())
	require.LessOrEqual(t, dev.most(), int64(4<<10))
}

// Memory that the driver refuses to free counts as held and is not used again. The next call that
// frees memory returns the error.
func TestRefusedFreeStaysHeld(t *testing.T) {
	r := newRig(t, transfer.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	refused := errors.New("refused")
	var err error
	dev := &meter{Device: r.dev, freeing: func() error { return err }}
	r.on(t, dev, transfer.Config{MaxBytes: 4 << 10, MaxCachedBytes: 1 << 10})
	err = refused
	require.NoError(t, r.get(t, 3<<10).Release(), "nobody is told yet")
	err = nil
	st := r.pool.Stats()
	require.Equal(t, [3]int64{0, 3 << 10, 1}, [3]int64{st.AllocatedBytes.Current, st.HeldBytes.Current, st.HostFrees})
	_, getErr := r.pool.Get(ctx, 2<<10)
	var limit *transfer.LimitError
	require.ErrorAs(t, getErr, &limit)
	require.Equal(t, transfer.LimitError{Requested: 2 << 10, Allocated: 3 << 10, Limit: 4 << 10}, *limit)
	require.ErrorIs(t, r.pool.EmptyCache(t.Context()), refused)
	require.NoError(t, r.pool.EmptyCache(t.Context()), "it was told")
	b := r.get(t, 1<<10)
	require.LessOrEqual(t, dev.most(), int64(4<<10))

	err = refused
	require.NoError(t, b.Release())
	require.ErrorIs(t, r.pool.EmptyCache(t.Context()), refused)
	require.EqualValues(t, 4<<10, r.pool.Stats().HeldBytes.Current)
	_, getErr = r.pool.Get(ctx, 1)
	require.ErrorIs(t, getErr, transfer.ErrLimit)
	require.NoError(t, r.pool.Close())
}

// Errors of frees come from any goroutine; one of them is returned.
func TestRefusedFreesOfManyGoroutines(t *testing.T) {
	r := newRig(t, transfer.Config{})
	refused := errors.New("refused")
	const rounds, each = 3, 8
	var calls atomic.Int64
	together := func() error {
		calls.Add(1)
		for begin := time.Now(); calls.Load() < each && time.Since(begin) < 100*time.Millisecond; {
			runtime.Gosched()
		}
		return refused
	}
	r.on(t, &meter{Device: r.dev, freeing: together}, transfer.Config{MaxCachedBytes: -1})
	for range rounds {
		var bufs []transfer.Buffer
		for range each {
			bufs = append(bufs, r.get(t, 64))
		}
		calls.Store(0)
		var group sync.WaitGroup
		for _, b := range bufs {
			group.Go(func() {
				if err := b.Release(); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		require.ErrorIs(t, r.pool.EmptyCache(t.Context()), refused)
	}
	require.EqualValues(t, rounds*each*64, r.pool.Stats().HeldBytes.Current)
}

// Close returns the errors of a free that failed long before, and of those that fail now.
func TestCloseTellsOfRefusedFrees(t *testing.T) {
	for _, cached := range []int64{-1, 0} {
		r := newRig(t, transfer.Config{})
		refused := errors.New("refused")
		p, err := transfer.New(&meter{Device: r.dev, freeing: func() error { return refused }}, transfer.Config{MaxCachedBytes: cached})
		require.NoError(t, err)
		b, err := p.Get(t.Context(), 64)
		require.NoError(t, err)
		require.NoError(t, b.Release())
		err = p.Close()
		require.ErrorIs(t, err, refused)
		require.ErrorContains(t, err, "transfer: Close: ")
	}
}

// A failed allocation gives back its reservation below the limit.
func TestFailedAllocationLeavesTheLimitAlone(t *testing.T) {
	r := newRig(t, transfer.Config{})
	dev := &failing{Device: r.dev}
	r.on(t, dev, transfer.Config{MaxBytes: 4 << 10})
	for range 3 {
		_, err := r.pool.Get(t.Context(), 4<<10)
		require.ErrorIs(t, err, device.ErrOutOfMemory)
	}
	dev.left.Store(1)
	require.NoError(t, r.get(t, 4<<10).Release())
	require.EqualValues(t, 7, r.pool.Stats().HostAllocs)
}

// lying is a device that reports success and returns less memory than requested.
type lying struct {
	device.Device
	give func([]byte) []byte // cuts the memory; nil: returns all of it
	free [][]byte
	err  error // of FreePinned
}

func (d *lying) AllocPinned(bytes int64) ([]byte, error) {
	b, err := d.Device.AllocPinned(bytes)
	if err != nil || d.give == nil {
		return b, err
	}
	given := d.give(b)
	if given == nil {
		err = d.Device.FreePinned(b)
	}
	return given, err
}

func (d *lying) FreePinned(b []byte) error {
	d.free = append(d.free, b)
	return errors.Join(d.Device.FreePinned(b), d.err)
}

// A driver's success with too little memory is an error, and that memory is freed.
func TestDriverGivesTooLittle(t *testing.T) {
	for name, c := range map[string]struct {
		give  func([]byte) []byte
		bytes string
		freed int
	}{
		"nil":   {func([]byte) []byte { return nil }, "0 bytes", 0},
		"empty": {func(b []byte) []byte { return b[:0] }, "0 bytes", 1},
		"short": {func(b []byte) []byte { return b[: len(b)-1 : len(b)-1] }, "4095 bytes", 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, transfer.Config{})
			dev := &lying{Device: r.dev, give: c.give}
			r.on(t, dev, transfer.Config{MaxBytes: 4 << 10})
			for i := range 2 {
				b, err := r.pool.Get(t.Context(), 4<<10)
				require.ErrorContains(t, err, "transfer: Get of 4096 bytes: the driver of "+r.dev.Name()+" returned "+c.bytes+" of pinned memory instead of 4096")
				require.True(t, b.IsZero())
				require.Len(t, dev.free, (i+1)*c.freed)
			}
			idle(t, r.pool)
			st := r.pool.Stats()
			require.Zero(t, st.HeldBytes.Current)
			require.Equal(t, [3]int64{2, 2 * int64(c.freed), 0}, [3]int64{st.HostAllocs, st.HostFrees, st.Misses})
			dev.give = nil
			b := r.get(t, 4<<10)
			require.Len(t, b.Bytes(), 4<<10)
			require.NoError(t, b.Release())
			if c.freed > 0 && name == "short" {
				refused := errors.New("refused")
				require.NoError(t, r.pool.EmptyCache(t.Context()))
				dev.give, dev.err = c.give, refused
				_, err := r.pool.Get(t.Context(), 4<<10)
				require.ErrorIs(t, err, refused)
				require.ErrorContains(t, err, "4095 bytes")
				require.EqualValues(t, 4095, r.pool.Stats().HeldBytes.Current)
				dev.err = nil
			}
		})
	}
}

// If a driver returns more than requested, the buffer has the size that is counted.
func TestDriverGivesTooMuch(t *testing.T) {
	r := newRig(t, transfer.Config{})
	r.on(t, &lying{Device: generous{r.dev}}, transfer.Config{MaxBytes: 8 << 10})
	b := r.get(t, 1<<10)
	require.Equal(t, [2]int{1 << 10, 1 << 10}, [2]int{len(b.Bytes()), cap(b.Bytes())})
	require.EqualValues(t, 1<<10, r.pool.Stats().HeldBytes.Current)
	require.NoError(t, b.Release())
	require.NoError(t, r.pool.EmptyCache(t.Context()))
	require.Zero(t, r.pool.Stats().HeldBytes.Current)
}

// generous is a device that allocates at least a page.
type generous struct{ device.Device }

func (d generous) AllocPinned(bytes int64) ([]byte, error) {
	return d.Device.AllocPinned(max(bytes, 4<<10))
}

// Download works with the available pinned memory at any size; up to 32 MiB an error leaves dst
// unchanged.
func TestDownloadFitsMaxBytes(t *testing.T) {
	for _, out := range []int64{0, 12 << 20} { // a buffer that takes pinned memory
		r := newRig(t, transfer.Config{MaxBytes: 16 << 20})
		other := r.get(t, out)
		sizes := []int{1 << 20, 8 << 20, 20 << 20, 32 << 20, 64 << 20}
		if testing.Short() {
			sizes = sizes[2:3]
		}
		for _, n := range sizes {
			block, src, dst := r.alloc(t, int64(n), r.a), pattern(n, byte(n>>20)), make([]byte, n)
			_, err := r.pool.Upload(t.Context(), r.a, block, 0, src)
			require.NoError(t, err)
			require.NoError(t, r.pool.Download(t.Context(), r.a, dst, block, 0), "%d MiB", n>>20)
			require.True(t, bytes.Equal(src, dst))
			require.NoError(t, block.Free())
		}
		require.NoError(t, other.Release())
		idle(t, r.pool)
		require.LessOrEqual(t, r.pool.Stats().HeldBytes.Peak, int64(16<<20))
	}
}

// A Download that does not fit whole frees no cached memory; up to 32 MiB it makes one copy if
// there is pinned memory for it.
func TestDownloadInOnePiece(t *testing.T) {
	r := newRig(t, transfer.Config{})
	block := r.alloc(t, 33<<20, r.a)
	_, err := r.pool.Fill(t.Context(), r.a, block, 0, 33<<20, 1)
	require.NoError(t, err)
	for _, c := range []struct {
		bytes, copies int64
	}{{2 << 20, 1}, {2<<20 + 1, 1}, {32 << 20, 1}, {32<<20 + 1, 17}} {
		before := r.pool.Stats().D2HCopies
		require.NoError(t, r.pool.Download(t.Context(), r.a, make([]byte, c.bytes), block, 0))
		require.Equal(t, c.copies, r.pool.Stats().D2HCopies-before, "%d bytes", c.bytes)
	}
	require.NoError(t, block.Free())

	// Two processors take 8 MiB of pinned memory for the pieces.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	limited := newRig(t, transfer.Config{MaxBytes: 12 << 20})
	block = limited.alloc(t, 20<<20, limited.a)
	_, err = limited.pool.Fill(t.Context(), limited.a, block, 0, 20<<20, 1)
	require.NoError(t, err)
	require.NoError(t, limited.get(t, 1<<10).Release())
	require.NoError(t, limited.pool.Download(t.Context(), limited.a, make([]byte, 20<<20), block, 0))
	require.Zero(t, limited.pool.Stats().HostFrees)
	require.NoError(t, block.Free())
}

// A Download in pieces that fails leaves dst unchanged, if dst has at most 32 MiB.
func TestDownloadInPiecesLeavesDstAlone(t *testing.T) {
	o := &canceller{op: transfer.OpD2H}
	r := newRig(t, transfer.Config{MaxBytes: 16 << 20, Observer: o})
	block := r.alloc(t, 32<<20, r.a)
	_, err := r.pool.Fill(t.Context(), r.a, block, 0, 32<<20, 1)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	o.cancel = cancel
	o.left.Store(14)
	dst := make([]byte, 32<<20)
	err = r.pool.Download(ctx, r.a, dst, block, 0)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "transfer: Download of 33554432 bytes")
	require.Equal(t, len(dst), bytes.Count(dst, []byte{0}))
	require.NoError(t, block.Free())
}
