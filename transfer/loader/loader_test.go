package loader_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

const (
	imageBytes = 6000
	labelBytes = 128
)

func newLoader(t testing.TB, r *rig, ahead int) *loader.Loader {
	t.Helper()
	l, err := loader.New(t.Context(), r.pool, loader.Config{
		Cache: r.cache, Compute: r.a, Copy: r.b, Fields: []int64{imageBytes, labelBytes}, Ahead: ahead,
	})
	require.NoError(t, err)
	return l
}

// counter is a source of n batches: batch i is filled with i, the last one in part.
func counter(n int, each func()) loader.Source {
	i := 0
	return func(_ context.Context, fields [][]byte) error {
		if each != nil {
			each()
		}
		if i == n {
			return io.EOF
		}
		i++
		if i == n {
			fields[0], fields[1] = fields[0][:imageBytes/2], fields[1][:labelBytes/2]
		}
		for _, f := range fields {
			for k := range f {
				f[k] = byte(i)
			}
		}
		return nil
	}
}

// sink is memory to which the compute stream copies batches, neither the cache's nor the pool's.
type sink struct {
	*rig
	t       testing.TB
	mem     []byte     // of the batches, one after the other
	scratch device.Ptr // of slow work
}

const (
	batchBytes   = imageBytes + labelBytes
	scratchBytes = 256 << 10
)

func newSink(t testing.TB, r *rig, batches int) *sink {
	t.Helper()
	k := &sink{rig: r, t: t}
	var err error
	k.mem, err = r.dev.AllocPinned(int64(batches) * batchBytes)
	require.NoError(t, err)
	k.scratch, err = r.dev.Alloc(scratchBytes)
	require.NoError(t, err)
	require.NoError(t, r.a.Memset(k.scratch, 0, scratchBytes))
	t.Cleanup(func() { require.NoError(t, errors.Join(r.dev.FreePinned(k.mem), r.dev.Free(k.scratch))) })
	return k
}

// step uses a batch on the compute stream, without waiting.
func (k *sink) step(b *loader.Minibatch, slow bool) {
	k.t.Helper()
	if slow {
		k.work()
	}
	at := b.Index() * batchBytes
	for i := range b.Fields() {
		require.NoError(k.t, k.a.CopyD2H(k.mem[at:at+b.Bytes(i)], b.Field(i).Ptr()))
		at += b.Bytes(i)
	}
}

// work queues work that takes the compute stream some time.
func (k *sink) work() {
	r := []device.Range{{Ptr: k.scratch, Bytes: scratchBytes}}
	l := &device.Launch{Name: "work", Reads: r, Writes: r}
	if _, ok := k.dev.(device.HostVisible); ok {
		l.Func = func() { time.Sleep(200 * time.Microsecond) }
	} else {
		l.Kernel, l.Args = cisterntest.Kernel(k.t, k.dev, "add"), []uint64{uint64(k.scratch), scratchBytes, 1}
		l.Grid, l.Block = [3]uint32{1, 1, 1}, [3]uint32{32, 1, 1}
	}
	require.NoError(k.t, k.a.Launch(l))
}

// check waits, and compares the compute stream's copies of the counter's n batches.
func (k *sink) check(n int) {
	k.t.Helper()
	require.NoError(k.t, k.a.Synchronize(k.t.Context()))
	for i := range n {
		bytes := batchBytes
		if i == n-1 {
			bytes /= 2
		}
		want := slices.Repeat([]byte{byte(i + 1)}, bytes)
		require.Equal(k.t, want, k.mem[i*batchBytes:i*batchBytes+bytes], "batch %d of %d", i, n)
	}
}

// epoch takes the counter's n batches to their end.
func (k *sink) epoch(l *loader.Loader, n int, each func(), slow bool) {
	t := k.t
	t.Helper()
	require.NoError(t, l.Start(t.Context(), counter(n, each)))
	for i := range n {
		b, err := l.Next(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, i, b.Index())
		k.step(b, slow)
		require.NoError(t, b.Release())
	}
	for range 2 {
		_, err := l.Next(t.Context())
		require.Equal(t, io.EOF, err)
	}
	k.check(n)
}

func TestLoaderEpochs(t *testing.T) {
	pause := func() { time.Sleep(200 * time.Microsecond) }
	for _, speed := range []struct {
		name string
		each func()
		slow bool
	}{{"even", nil, false}, {"slow source", pause, false}, {"slow compute", nil, true}} {
		for _, ahead := range []int{1, 2, 5} {
			t.Run(fmt.Sprint(speed.name, " ", ahead), func(t *testing.T) {
				r := newRig(t, transfer.Config{})
				k := newSink(t, r, 40)
				l := newLoader(t, r, ahead)
				reserved, pinned := r.cache.MemoryReserved(), r.pool.Stats().AllocatedBytes.Current
				require.EqualValues(t, (ahead+1)*(imageBytes/512*512+512+512), r.cache.MemoryAllocated())
				for range 3 {
					k.epoch(l, 40, speed.each, speed.slow)
				}
				require.Equal(t, reserved, r.cache.MaxMemoryReserved())
				require.Equal(t, pinned, r.pool.Stats().AllocatedBytes.Peak)
				st := l.Stats()
				require.EqualValues(t, 3, st.Epochs)
				require.EqualValues(t, 120, st.Batches)
				require.EqualValues(t, 3*79*(imageBytes+labelBytes)/2, st.Bytes)
				require.NoError(t, l.Close())
				require.NoError(t, l.Close())
				require.Zero(t, r.cache.MemoryAllocated())
				_, err := l.Next(t.Context())
				require.ErrorIs(t, err, transfer.ErrClosed)
				require.ErrorIs(t, l.Start(t.Context(), counter(1, nil)), transfer.ErrClosed)
			})
		}
	}
}

// At most N steps are in flight: Next waits for the step N before, until its context ends.
func TestLoaderThrottles(t *testing.T) {
	r := newRig(t, transfer.Config{})
	l := newLoader(t, r, 2)
	open := cisterntest.Hold(t, r.a)
	require.NoError(t, l.Start(t.Context(), counter(10, nil)))
	k := newSink(t, r, 10)
	for range 2 {
		b, err := l.Next(t.Context())
		require.NoError(t, err)
		k.step(b, false)
		require.NoError(t, b.Release())
	}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		_, err := l.Next(ctx)
		failed <- err
	}()
	select {
	case err := <-failed:
		t.Fatalf("a third step while two are in flight: %v", err)
	case <-time.After(5 * time.Millisecond):
	}
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
	open()
	b, err := l.Next(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, b.Index(), "the cancelled Next lost a batch")
	require.NoError(t, b.Release())
	require.NoError(t, l.Close())
}

func TestLoaderHeldBatches(t *testing.T) {
	r := newRig(t, transfer.Config{})
	l, err := loader.New(t.Context(), r.pool, loader.Config{Cache: r.cache, Compute: r.a, Fields: []int64{imageBytes, labelBytes}})
	require.NoError(t, err)
	require.NoError(t, l.Start(t.Context(), counter(10, nil)))
	var held []*loader.Minibatch
	for range 3 {
		b, err := l.Next(t.Context())
		require.NoError(t, err)
		held = append(held, b)
	}
	_, err = l.Next(t.Context())
	require.ErrorIs(t, err, transfer.ErrInFlight)
	require.NoError(t, held[1].Release())
	require.ErrorIs(t, held[1].Release(), transfer.ErrReleased)
	require.True(t, held[1].Field(0).IsZero())
	require.True(t, held[0].Field(2).IsZero())
	require.Zero(t, held[0].Bytes(-1))
	b, err := l.Next(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 3, b.Index())
	require.ErrorContains(t, l.Close(), "3 batches held")
	require.ErrorIs(t, b.Release(), transfer.ErrClosed)
	require.Zero(t, r.cache.MemoryAllocated())
}

// The ring's blocks are not reused while the compute stream still uses them.
func TestLoaderCloseUnderCompute(t *testing.T) {
	r := newRig(t, transfer.Config{})
	l := newLoader(t, r, 1)
	k := newSink(t, r, 1)
	require.NoError(t, l.Start(t.Context(), counter(1, nil)))
	b, err := l.Next(t.Context())
	require.NoError(t, err)
	open := cisterntest.Hold(t, r.a)
	k.step(b, false)
	require.NoError(t, b.Release())
	require.NoError(t, l.Close())
	for range 8 {
		next := r.alloc(t, imageBytes, r.b)
		require.NoError(t, r.b.Memset(next.Ptr(), 99, next.Size()))
		defer next.Free()
	}
	require.NoError(t, r.b.Synchronize(t.Context()))
	open()
	k.check(1)
}

// A new epoch and a Close cancel an epoch at any point.
func TestLoaderGivesUp(t *testing.T) {
	for stop := range 6 {
		r := newRig(t, transfer.Config{})
		l := newLoader(t, r, 2)
		k := newSink(t, r, 10)
		require.NoError(t, l.Start(t.Context(), counter(10, nil)))
		for range stop {
			b, err := l.Next(t.Context())
			require.NoError(t, err)
			k.step(b, false)
			require.NoError(t, b.Release())
		}
		k.epoch(l, 7, nil, false)
		require.NoError(t, l.Start(t.Context(), counter(10, nil)))
		for range stop {
			b, err := l.Next(t.Context())
			require.NoError(t, err)
			require.NoError(t, b.Release())
		}
		require.NoError(t, l.Close())
	}
}

// A source that waits for its context does not block a new epoch or Close, and Close wakes a Next
// that waits for it.
func TestLoaderCloseWhileWaiting(t *testing.T) {
	r := newRig(t, transfer.Config{})
	l := newLoader(t, r, 2)
	asked := make(chan struct{})
	require.NoError(t, l.Start(t.Context(), func(ctx context.Context, _ [][]byte) error {
		close(asked)
		<-ctx.Done()
		return ctx.Err()
	}))
	failed := make(chan error)
	go func() {
		_, err := l.Next(t.Context())
		failed <- err
	}()
	<-asked
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-failed, transfer.ErrClosed)
}

func TestLoaderSourceErrors(t *testing.T) {
	broken := errors.New("broken file")
	for name, c := range map[string]struct {
		fail func(fields [][]byte) error
		want error
	}{
		"error":     {func([][]byte) error { return broken }, broken},
		"wrapped":   {func([][]byte) error { return fmt.Errorf("labels: %w", io.EOF) }, io.ErrUnexpectedEOF},
		"panic":     {func([][]byte) error { panic(broken) }, broken},
		"not error": {func([][]byte) error { panic("oh") }, nil},
		"goexit":    {func([][]byte) error { runtime.Goexit(); return nil }, nil},
		"replaced":  {func(f [][]byte) error { f[0] = make([]byte, 3); return nil }, transfer.ErrInvalid},
		"grown":     {func(f [][]byte) error { f[1] = append(f[1], 1); return nil }, transfer.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, transfer.Config{})
			k := newSink(t, r, 5)
			l := newLoader(t, r, 2)
			good := counter(10, nil)
			n := 0
			require.NoError(t, l.Start(t.Context(), func(ctx context.Context, fields [][]byte) error {
				if n++; n == 4 {
					return c.fail(fields)
				}
				return good(ctx, fields)
			}))
			for range 3 {
				b, err := l.Next(t.Context())
				require.NoError(t, err)
				require.NoError(t, b.Release())
			}
			_, err := l.Next(t.Context())
			require.ErrorContains(t, err, "loader: the source at batch 3: ")
			require.NotErrorIs(t, err, io.EOF)
			if c.want != nil {
				require.ErrorIs(t, err, c.want)
			}
			_, err = l.Next(t.Context())
			require.Equal(t, io.EOF, err)
			k.epoch(l, 5, nil, false)
			require.NoError(t, l.Close())
		})
	}
}

func TestLoaderContexts(t *testing.T) {
	r := newRig(t, transfer.Config{})
	l := newLoader(t, r, 2)
	_, err := l.Next(t.Context())
	require.ErrorIs(t, err, transfer.ErrInvalid, "before Start")
	require.ErrorIs(t, l.Start(t.Context(), nil), transfer.ErrInvalid)
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, l.Start(ctx, counter(100, nil)))
	cancel()
	for err == nil || !errors.Is(err, context.Canceled) {
		var b *loader.Minibatch
		if b, err = l.Next(t.Context()); err == nil {
			require.NoError(t, b.Release())
		}
	}
	_, err = l.Next(t.Context())
	require.Equal(t, io.EOF, err)
	require.NoError(t, l.Close())
}

func TestLoaderBadConfig(t *testing.T) {
	r, other := newRig(t, transfer.Config{}), newRig(t, transfer.Config{})
	r.host(t) // needs other devices with little memory
	good := loader.Config{Cache: r.cache, Compute: r.a, Fields: []int64{10}}
	for _, c := range []struct {
		change func(*loader.Config)
		want   error
	}{
		{func(c *loader.Config) { c.Cache = nil }, transfer.ErrInvalid},
		{func(c *loader.Config) { c.Cache = other.cache }, transfer.ErrInvalid},
		{func(c *loader.Config) { c.Compute = nil }, transfer.ErrInvalid},
		{func(c *loader.Config) { c.Copy = other.a }, transfer.ErrInvalid},
		{func(c *loader.Config) { c.Ahead = -1 }, transfer.ErrRange},
		{func(c *loader.Config) { c.Fields = nil }, transfer.ErrInvalid},
		{func(c *loader.Config) { c.Fields = []int64{1, 0} }, transfer.ErrRange},
		{func(c *loader.Config) { c.Fields = []int64{100 << 20} }, memcache.ErrOutOfMemory},
		{func(c *loader.Config) { c.Fields = []int64{10, 1 << 40} }, memcache.ErrOutOfMemory}, // field 0 fits
	} {
		cfg := good
		c.change(&cfg)
		_, err := loader.New(t.Context(), r.pool, cfg)
		require.ErrorIs(t, err, c.want)
		require.Zero(t, r.cache.MemoryAllocated())
		require.Zero(t, r.pool.Stats().ActiveBytes.Current)
	}
	l, err := loader.New(t.Context(), r.pool, good)
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

// The uploads of the next batches run while the compute stream is busy with this one: they end before it does.
func TestLoaderOverlapsCompute(t *testing.T) {
	rec := &stacktest.Recorder{}
	r := newRig(t, transfer.Config{Observer: rec})
	k := newSink(t, r, 9)
	l := newLoader(t, r, 2)
	require.NoError(t, l.Start(t.Context(), counter(9, nil)))
	for i := 0; i < 9; i += 3 {
		open := cisterntest.Hold(t, r.a)
		b, err := l.Next(t.Context())
		require.NoError(t, err)
		k.step(b, false)
		require.Eventually(t, func() bool { return len(rec.Of(transfer.OpH2D)) == 2*(i+3) }, 10*time.Second, time.Millisecond,
			"the uploads of the next two batches wait for compute")
		done, err := r.a.Query()
		require.NoError(t, err)
		require.False(t, done, "compute is busy all the time")
		require.NoError(t, b.Release())
		open()
		for range 2 {
			b, err := l.Next(t.Context())
			require.NoError(t, err)
			k.step(b, false)
			require.NoError(t, r.a.Synchronize(t.Context()))
			require.NoError(t, b.Release())
		}
	}
	require.NoError(t, l.Close())
	k.check(9)
}

// A source that fails or ends any number of times costs no slot of the ring.
func TestLoaderKeepsTheSlotsOfSourcesThatEnd(t *testing.T) {
	r := newRig(t, transfer.Config{})
	l := newLoader(t, r, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	failed := errors.New("failed")
	for i := range 5 {
		end := []error{failed, io.EOF}[i%2]
		require.NoError(t, l.Start(ctx, func(context.Context, [][]byte) error { return end }))
		_, err := l.Next(ctx)
		require.ErrorIs(t, err, end)
		_, err = l.Next(ctx)
		require.Equal(t, io.EOF, err)
	}
	require.NoError(t, l.Start(ctx, counter(3, nil)))
	for i := range 3 {
		b, err := l.Next(ctx)
		require.NoError(t, err)
		require.EqualValues(t, i, b.Index())
		require.NoError(t, b.Release())
	}
	require.NoError(t, l.Close())
}
