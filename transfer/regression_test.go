package transfer_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// A stale handle only compares its number: what the slab's present owner, or the pool, does with it is not looked at.
func TestWaitBesideRelease(t *testing.T) {
	r := newRig(t, transfer.Config{})
	for range 200 {
		b := r.get(t, 64)
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 3 {
				if err := b.Wait(t.Context()); err != nil && !errors.Is(err, transfer.ErrReleased) {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			if err := b.Release(); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
	}
}

// After the pool's Close the batch's memory is the driver's.
func TestBatchOfAClosedPoolIsNotWritten(t *testing.T) {
	r := newRig(t, transfer.Config{})
	pool, err := transfer.New(r.dev, transfer.Config{})
	require.NoError(t, err)
	block := r.alloc(t, 512, r.a)
	b := pool.NewBatch()
	require.NoError(t, b.Upload(t.Context(), block, 0, make([]byte, 8)))
	require.ErrorContains(t, pool.Close(), "1 buffers")
	require.ErrorIs(t, b.Upload(t.Context(), block, 0, make([]byte, 8)), transfer.ErrClosed)
	_, err = b.Output(t.Context(), block, 0, 8)
	require.ErrorIs(t, err, transfer.ErrClosed)
	require.ErrorIs(t, b.Close(), transfer.ErrClosed)
	require.NoError(t, block.Free())
}

// pinnedHook is a device that calls after when it has allocated pinned memory, and free when it is to free some.
type pinnedHook struct {
	device.Device
	after, free func()
}

func (d *pinnedHook) AllocPinned(bytes int64) ([]byte, error) {
	b, err := d.Device.AllocPinned(bytes)
	d.after()
	return b, err
}

func (d *pinnedHook) FreePinned(b []byte) error {
	d.free()
	return d.Device.FreePinned(b)
}

// hookContext calls hook whenever it is asked for its error.
type hookContext struct {
	context.Context
	hook func()
}

func (c hookContext) Err() error {
	c.hook()
	return c.Context.Err()
}

// Close waits for an Upload or Download that is running: it does not free the memory that they stage in.
func TestCloseWaitsForStaging(t *testing.T) {
	for name, call := range map[string]func(context.Context, *transfer.Pool, device.Stream, memcache.Block) error{
		"upload": func(ctx context.Context, p *transfer.Pool, s device.Stream, b memcache.Block) error {
			_, err := p.Upload(ctx, s, b, 0, make([]byte, 512))
			return err
		},
		"download": func(ctx context.Context, p *transfer.Pool, s device.Stream, b memcache.Block) error {
			return p.Download(ctx, s, make([]byte, 512), b, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, transfer.Config{})
			block := r.alloc(t, 512, r.a)
			var pool *transfer.Pool
			var once sync.Once
			allocated, freed, closed := false, make(chan struct{}), make(chan error, 1)
			dev := &pinnedHook{Device: r.dev, after: func() { allocated = true }, free: func() { close(freed) }}
			pool, err := transfer.New(dev, transfer.Config{})
			require.NoError(t, err)
			ctx := hookContext{t.Context(), func() {
				if !allocated {
					return
				}
				once.Do(func() {
					go func() { closed <- pool.Close() }()
					for pool.EmptyCache(t.Context()) == nil {
						runtime.Gosched()
					}
					select {
					case <-freed:
						t.Error("the memory was freed during the call")
					case <-time.After(20 * time.Millisecond): // long enough for a Close that does not wait
					}
				})
			}}
			require.ErrorIs(t, call(ctx, pool, r.a, block), transfer.ErrClosed)
			require.NoError(t, <-closed)
			require.NoError(t, block.Free())
		})
	}
}
