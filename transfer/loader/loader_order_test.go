package loader_test

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// An epoch that is cancelled at any point of its source returns every slot: the ring does not
// shrink.
func TestLoaderGivesUpAgainAndAgain(t *testing.T) {
	r := newRig(t, transfer.Config{})
	const ahead = 3
	l := newLoader(t, r, ahead)
	for round := range 12 {
		var filled atomic.Int64
		source := counter(20, func() { filled.Add(1) })
		if round%3 == 1 { // it is in the middle of a batch
			source = func(ctx context.Context, fields [][]byte) error {
				if filled.Add(1) > 2 {
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			}
		}
		require.NoError(t, l.Start(t.Context(), source))
		want := int64(ahead + 1) // all slots
		if round%3 == 1 {
			want = 3
		}
		cisterntest.WaitFor(t, func() bool { return filled.Load() == want })
		if round%3 == 2 {
			b, err := l.Next(t.Context())
			require.NoError(t, err)
			require.NoError(t, b.Release())
		}
	}
	k := newSink(t, r, 9)
	k.epoch(l, 9, nil, false)
	require.NoError(t, l.Close())
}

// A source gets fields of full capacity each time, may leave one empty, and must return prefixes of
// them.
func TestLoaderFieldsAreWhole(t *testing.T) {
	r := newRig(t, transfer.Config{})
	l := newLoader(t, r, 1)
	i := 0
	require.NoError(t, l.Start(t.Context(), func(_ context.Context, fields [][]byte) error {
		if len(fields[0]) != imageBytes || len(fields[1]) != labelBytes {
			return errors.New("a field is not whole")
		}
		switch i++; {
		case i < 6:
			fields[0], fields[1] = fields[0][:i], nil
		case i == 6:
			fields[0] = fields[0][:imageBytes:imageBytes]
			return nil
		case i == 7:
			fields[1] = fields[1][:cap(fields[1])] // the pinned memory is longer than the field
			if len(fields[1]) == labelBytes {
				return io.EOF
			}
		default:
			return io.EOF
		}
		return nil
	}))
	for n := range 6 {
		b, err := l.Next(t.Context())
		require.NoError(t, err)
		if n < 5 {
			require.EqualValues(t, n+1, b.Bytes(0))
			require.Zero(t, b.Bytes(1))
		}
		require.NoError(t, b.Release())
	}
	_, err := l.Next(t.Context())
	if err != io.EOF {
		require.ErrorIs(t, err, transfer.ErrInvalid)
	}
	require.NoError(t, l.Close())
}

// A failed Release wakes a Next that waits for data.
func TestLostLoaderWakesNext(t *testing.T) {
	r := newRig(t, transfer.Config{})
	l, err := loader.New(t.Context(), r.pool, loader.Config{
		Cache: r.cache, Compute: cisterntest.Unrecordable{Stream: r.a}, Copy: r.b, Fields: []int64{imageBytes, labelBytes},
	})
	require.NoError(t, err)
	good := counter(1, nil)
	n := 0
	require.NoError(t, l.Start(t.Context(), func(ctx context.Context, fields [][]byte) error {
		if n++; n == 1 {
			return good(ctx, fields)
		}
		<-ctx.Done()
		return ctx.Err()
	}))
	b, err := l.Next(t.Context())
	require.NoError(t, err)
	ctx, awaited := cisterntest.Awaited(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := l.Next(ctx)
		failed <- err
	}()
	<-awaited
	time.Sleep(time.Millisecond)
	require.ErrorIs(t, b.Release(), cisterntest.ErrRefused)
	select {
	case err := <-failed:
		require.ErrorIs(t, err, cisterntest.ErrRefused)
	case <-time.After(5 * time.Second):
		t.Error("Next still waits")
	}
	require.NoError(t, l.Close())
}

// A loader counts how long Next waits for data, and for steps in flight.
func TestLoaderCountsItsWaits(t *testing.T) {
	const pause = 3 * time.Millisecond
	r := newRig(t, transfer.Config{})
	l := newLoader(t, r, 1)
	require.NoError(t, l.Start(t.Context(), counter(3, func() { time.Sleep(pause) })))
	b, err := l.Next(t.Context())
	require.NoError(t, err)
	require.Positive(t, b.Waited())
	require.GreaterOrEqual(t, l.Stats().Waited, b.Waited())
	require.Less(t, l.Stats().Throttled, l.Stats().Waited)
	open := cisterntest.Hold(t, r.a)
	require.NoError(t, b.Release())
	time.AfterFunc(pause, open)
	_, err = l.Next(t.Context())
	require.NoError(t, err)
	require.Greater(t, l.Stats().Throttled, pause/2)
	require.Error(t, l.Close(), "a batch is held")
}

// waiting is a stream that counts its Waits.
type waiting struct {
	device.Stream
	waits *atomic.Int64
}

func (s waiting) Wait(e device.Event) error {
	s.waits.Add(1)
	return s.Stream.Wait(e)
}

// The ring's blocks are inputs of the module that makes the loader. Each upload waits for the
// slot's last use, except the slot's first upload, even at the beginning of an epoch. The waits of
// the batches add up.
func TestLoaderRing(t *testing.T) {
	r := newRig(t, transfer.Config{})
	var waits atomic.Int64
	l, err := loader.New(memcache.WithModule(t.Context(), "data"), r.pool, loader.Config{
		Cache: r.cache, Compute: r.a, Copy: waiting{r.b, &waits}, Fields: []int64{imageBytes, labelBytes}, Ahead: 1,
	})
	require.NoError(t, err)
	blocks := 0
	for _, h := range r.cache.Profile().Holdings {
		require.Equal(t, memcache.Label{Category: memcache.CategoryInput, Module: "data"}, h.Label)
		blocks += h.Blocks
	}
	require.Equal(t, 4, blocks)
	const epochs, batches, slots = 3, 5, 2
	for range epochs {
		waited := l.Stats().Waited
		require.NoError(t, l.Start(t.Context(), counter(batches, nil)))
		for range batches {
			b, err := l.Next(t.Context())
			require.NoError(t, err)
			waited += b.Waited()
			require.NoError(t, b.Release())
		}
		require.Equal(t, waited, l.Stats().Waited)
		_, err := l.Next(t.Context())
		require.Equal(t, io.EOF, err)
	}
	require.EqualValues(t, epochs*batches-slots, waits.Load())
	require.NoError(t, l.Close())
}

// unwaiting is a stream whose next Wait fails.
type unwaiting struct {
	device.Stream
	fails *atomic.Bool
}

func (s unwaiting) Wait(e device.Event) error {
	if s.fails.CompareAndSwap(true, false) {
		return cisterntest.ErrRefused
	}
	return s.Stream.Wait(e)
}

// If the compute stream can't wait for a batch, the batch is lost, but its slot is not.
func TestNextWhoseStreamCannotWait(t *testing.T) {
	r := newRig(t, transfer.Config{})
	fails := new(atomic.Bool)
	l, err := loader.New(t.Context(), r.pool, loader.Config{
		Cache: r.cache, Compute: unwaiting{r.a, fails}, Copy: r.b, Fields: []int64{imageBytes, labelBytes}, Ahead: 1,
	})
	require.NoError(t, err)
	require.NoError(t, l.Start(t.Context(), counter(9, nil)))
	for i := range 9 {
		fails.Store(i%2 == 0)
		b, err := l.Next(t.Context())
		if i%2 == 0 {
			require.ErrorIs(t, err, cisterntest.ErrRefused)
			continue
		}
		require.NoError(t, err)
		require.EqualValues(t, i, b.Index())
		require.NoError(t, b.Release())
	}
	require.NoError(t, l.Close())
}

// Batches that are held count as steps in flight.
func TestHeldBatchesThrottle(t *testing.T) {
	r := newRig(t, transfer.Config{})
	l := newLoader(t, r, 2)
	require.NoError(t, l.Start(t.Context(), counter(9, nil)))
	open := cisterntest.Hold(t, r.a)
	held, err := l.Next(t.Context())
	require.NoError(t, err)
	released, err := l.Next(t.Context())
	require.NoError(t, err)
	require.NoError(t, released.Release())
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	_, err = l.Next(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "waiting for an earlier step")
	open()
	b, err := l.Next(t.Context())
	require.NoError(t, err)
	require.NoError(t, errors.Join(b.Release(), held.Release()))
	require.NoError(t, l.Close())
}

func TestNextIsCancelledWhileItWaitsForData(t *testing.T) {
	r := newRig(t, transfer.Config{})
	l := newLoader(t, r, 1)
	require.NoError(t, l.Start(t.Context(), func(ctx context.Context, _ [][]byte) error {
		<-ctx.Done()
		return ctx.Err()
	}))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, err := l.Next(ctx)
		failed <- err
	}()
	select {
	case err := <-failed:
		require.ErrorIs(t, err, context.DeadlineExceeded)
	case <-time.After(5 * time.Second):
		t.Error("Next still waits")
	}
	require.NoError(t, l.Close())
}

// Close waits until the source has returned: it may still write the pinned memory.
func TestLoaderCloseWaitsForTheSource(t *testing.T) {
	r := newRig(t, transfer.Config{})
	l := newLoader(t, r, 1)
	called, returned := make(chan struct{}), new(atomic.Bool)
	require.NoError(t, l.Start(t.Context(), func(context.Context, [][]byte) error {
		close(called)
		time.Sleep(5 * time.Millisecond)
		returned.Store(true)
		return io.EOF
	}))
	<-called
	require.NoError(t, l.Close())
	require.True(t, returned.Load())
}

// Close and a Next of another goroutine take turns.
func TestLoaderCloseBesideNext(t *testing.T) {
	for range 20 {
		r := newRig(t, transfer.Config{})
		l := newLoader(t, r, 1)
		require.NoError(t, l.Start(t.Context(), counter(100, nil)))
		failed := make(chan error, 1)
		go func() {
			for {
				b, err := l.Next(t.Context())
				if err == nil {
					err = b.Release()
				}
				if err != nil {
					failed <- err
					return
				}
			}
		}()
		time.Sleep(100 * time.Microsecond)
		_ = l.Close() // a batch may be held
		if err := <-failed; err != io.EOF {
			require.ErrorIs(t, err, transfer.ErrClosed)
		}
	}
}

// duringSelect is a context that calls a function when a caller is about to wait for its end.
type duringSelect struct {
	context.Context
	call func()
}

func (c duringSelect) Done() <-chan struct{} {
	c.call()
	return c.Context.Done()
}

// A Next or a Start that gets its turn after Close finds the loader closed.
func TestLoaderClosedBeforeItsTurn(t *testing.T) {
	for range 30 {
		r := newRig(t, transfer.Config{})
		l := newLoader(t, r, 1)
		require.NoError(t, l.Start(t.Context(), counter(100, nil)))
		ctx := duringSelect{t.Context(), func() { require.NoError(t, l.Close()) }}
		_, err := l.Next(ctx)
		require.ErrorIs(t, err, transfer.ErrClosed)

		l = newLoader(t, r, 1)
		ctx.call = func() { require.NoError(t, l.Close()) }
		require.ErrorIs(t, l.Start(ctx, counter(100, nil)), transfer.ErrClosed)
		require.False(t, l.Taken(), "a Close that comes later would wait for ever")
		over, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, l.Start(over, counter(100, nil)), transfer.ErrClosed)
	}
}

// A slot whose end of use is unknown makes the loader unusable, and is not used again.
func TestLoaderWithoutAnEnd(t *testing.T) {
	r := newRig(t, transfer.Config{})
	l, err := loader.New(t.Context(), r.pool, loader.Config{
		Cache: r.cache, Compute: cisterntest.Unrecordable{Stream: r.a}, Copy: r.b, Fields: []int64{imageBytes, labelBytes},
	})
	require.NoError(t, err)
	require.NoError(t, l.Start(t.Context(), counter(9, nil)))
	b, err := l.Next(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, b.Release(), cisterntest.ErrRefused)
	for range 2 {
		_, err = l.Next(t.Context())
		require.ErrorIs(t, err, cisterntest.ErrRefused)
	}
	require.NoError(t, l.Close())
}

// unrecording is a stream on which one record fails.
type unrecording struct {
	device.Stream
	fails *atomic.Bool
}

func (s unrecording) Record(e device.Event) error {
	if s.fails.CompareAndSwap(true, false) {
		return cisterntest.ErrRefused
	}
	return s.Stream.Record(e)
}

// An upload with an unknown end costs its epoch a batch, and later epochs nothing.
func TestUploadThatIsNotRecorded(t *testing.T) {
	r := newRig(t, transfer.Config{})
	fails := new(atomic.Bool)
	l, err := loader.New(t.Context(), r.pool, loader.Config{
		Cache: r.cache, Compute: r.a, Copy: unrecording{r.b, fails}, Fields: []int64{imageBytes, labelBytes}, Ahead: 1,
	})
	require.NoError(t, err)
	fails.Store(true)
	require.NoError(t, l.Start(t.Context(), counter(3, nil)))
	_, err = l.Next(t.Context())
	require.ErrorIs(t, err, cisterntest.ErrRefused)
	k := newSink(t, r, 5)
	k.epoch(l, 5, nil, false)
	k.check(5)
	require.NoError(t, l.Close())
}
