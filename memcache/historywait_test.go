package memcache

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// fallBehind adds events until the reader of a stream has fallen behind.
func fallBehind(s *HistoryStream) {
	for !s.behind.Load() {
		e := event(ActionNote)
		s.add(&e)
	}
}

// waits starts f, which blocks, and returns a function that waits for its end.
func waits(t *testing.T, f func() error) (end func() error) {
	result := make(chan error, 1)
	go func() { result <- f() }()
	synctest.Wait()
	select {
	case err := <-result:
		require.Failf(t, "it did not wait", "%v", err)
	default:
	}
	return func() error { return <-result }
}

// TestHistoryStreamIsBounded: every call that adds events waits each time for a reader that has
// fallen behind.
func TestHistoryStreamIsBounded(t *testing.T) {
	for name, call := range map[string]func(c *Cache, b Block) error{
		"SetLabel":              func(_ *Cache, b Block) error { return b.SetLabel(Label{Module: "m"}) },
		"ResetPeakStats":        func(c *Cache, _ Block) error { c.ResetPeakStats(); return nil },
		"ResetAccumulatedStats": func(c *Cache, _ Block) error { c.ResetAccumulatedStats(); return nil },
		"SetMemoryFraction":     func(c *Cache, _ Block) error { return c.SetMemoryFraction(0.5) },
		"EmptyCache":            func(c *Cache, _ Block) error { return c.EmptyCache(context.Background()) },
		"Free":                  func(_ *Cache, b Block) error { return b.Free() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, dev := newCache(t, Config{})
				b := mustAlloc(t, c, 100, dev.stream(1))
				stream, err := c.StreamHistory(HistoryOptions{})
				require.NoError(t, err)
				fallBehind(stream)
				end := waits(t, func() error { return call(c, b) })
				stream.Close()
				require.NoError(t, end())
				require.NoError(t, call(c, mustAlloc(t, c, 100, dev.stream(1))), "without a stream nothing waits")
			})
		})
	}
}

// TestFreeWithoutTheReader: a context ends a free's wait for the reader. The block is freed all the
// same, and the call is counted when it ends.
func TestFreeWithoutTheReader(t *testing.T) {
	for _, config := range []Config{{}, {NoCaching: true}} {
		synctest.Test(t, func(t *testing.T) {
			c, dev := newCache(t, config)
			a, b := mustAlloc(t, c, 512, dev.stream(1)), mustAlloc(t, c, 512, dev.stream(1))
			last := mustAlloc(t, c, 512, dev.stream(1))
			stream, err := c.StreamHistory(HistoryOptions{})
			require.NoError(t, err)
			fallBehind(stream)
			ctx, cancel := context.WithCancel(t.Context())
			end := waits(t, func() error { return a.FreeContext(ctx) })
			require.EqualValues(t, 3*512, c.MemoryAllocated())
			cancel()
			require.NoError(t, end())
			require.NoError(t, b.FreeContext(ctx))
			require.EqualValues(t, 512, c.MemoryAllocated())
			require.Zero(t, stream.calls.Load())
			stream.Close()
			var frees int
			for _, a := range actions(t, stream) {
				if a == ActionFreeRequested {
					frees++
				}
			}
			require.Equal(t, 2, frees)
			var none context.Context // a user's mistake
			require.NoError(t, last.FreeContext(none))
		})
	}
}

// TestHistoryOfFailedRequests: a request that fails before it has the growth lock has changed
// nothing, and records nothing.
func TestHistoryOfFailedRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, dev := newCache(t, Config{})
		s := dev.stream(1)
		stream, err := c.StreamHistory(HistoryOptions{})
		require.NoError(t, err)
		hold, fault := make(chan struct{}), error(nil)
		dev.gate = func(context.Context, string) error { <-hold; return fault }
		first := waits(t, func() error { _, err := c.Alloc(t.Context(), 100, s); return err })
		ctx, cancel := context.WithCancel(t.Context())
		second := waits(t, func() error { _, err := c.Alloc(ctx, 3<<20, s); return err })
		cancel()
		require.ErrorIs(t, second(), context.Canceled)
		close(hold)
		require.NoError(t, first())
		fault = errors.New("the driver's")
		_, err = c.Alloc(t.Context(), 3<<20, s)
		require.ErrorIs(t, err, fault)
		stream.Close()
		require.Equal(t, []Action{ActionMiss, ActionOverlap, ActionSegmentAlloc, ActionAlloc, ActionMiss, ActionFailed}, actions(t, stream))
	})
}

// TestHistoryStreamStartsBetweenRequests: the start waits for a request that is calling the driver,
// whose miss would be missing. The stream begins with the memory that this request got.
func TestHistoryStreamStartsBetweenRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, dev := newCache(t, Config{})
		hold := make(chan struct{})
		dev.gate = func(context.Context, string) error { <-hold; return nil }
		request := waits(t, func() error { _, err := c.Alloc(t.Context(), 100, dev.stream(1)); return err })
		var stream *HistoryStream
		start := waits(t, func() (err error) { stream, err = c.StreamHistory(HistoryOptions{}); return err })
		close(hold)
		require.NoError(t, request())
		require.NoError(t, start())
		stream.Close()
		require.Empty(t, actions(t, stream))
		require.EqualValues(t, 512, stream.Start().Stats.AllocatedBytes.All.Current)
	})
}

// TestLargestHistory checks the comment of maxHistory about 64-bit systems.
func TestLargestHistory(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) < 8 {
		t.Skip("of 32 bits")
	}
	require.InDelta(t, 190e6, float64(maxHistory*unsafe.Sizeof(HistoryEntry{})), 5e6)
}
