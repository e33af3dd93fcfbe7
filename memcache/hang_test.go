package memcache

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// hang blocks the device's next call of a kind until it is released, or its context ends.
type hang struct {
	entered, leave chan struct{}
}

func hangAt(dev *scripted, call string) *hang {
	h := &hang{entered: make(chan struct{}), leave: make(chan struct{})}
	var once atomic.Bool
	dev.gate = func(ctx context.Context, c string) error {
		if c != call || !once.CompareAndSwap(false, true) {
			return nil
		}
		close(h.entered)
		select {
		case <-h.leave:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return h
}

// async runs f on a goroutine; wait returns its error.
func async(f func() error) (wait func() error) {
	result := make(chan error, 1)
	go func() { result <- f() }()
	return func() error { return <-result }
}

// scene is a cache with a hole of 1 MiB on each of two streams, in segments in use, and a free
// segment that a flush returns.
type scene struct {
	c        *Cache
	dev      *scripted
	s, other *scriptedStream
	keep     []Block
}

func newScene(t *testing.T, config Config) *scene {
	c, dev := newCache(t, config)
	x := &scene{c: c, dev: dev, s: dev.stream(1), other: dev.stream(2)}
	for _, s := range []device.Stream{x.s, x.other} {
		hole := mustAlloc(t, c, 1<<20, s)
		x.keep = append(x.keep, mustAlloc(t, c, 1<<20, s))
		require.NoError(t, hole.Free())
		require.NoError(t, mustAlloc(t, c, 60<<20, s).Free())
	}
	return x
}

// pend leaves a freed block that waits for a busy stream.
func (x *scene) pend(t *testing.T) {
	busy := x.dev.stream(3)
	busy.busy = true
	b := mustAlloc(t, x.c, 40<<20, x.other)
	require.NoError(t, errors.Join(b.RecordStream(busy), b.Free()))
}

// blocking are the ways in which a call can hang in the device.
var blocking = map[string]struct {
	call       string
	expandable bool
	pending    bool
	run        func(ctx context.Context, x *scene) error
}{
	"driver alloc":                  {"Alloc", false, false, grow},
	"map":                           {"Map", true, false, grow},
	"reserve":                       {"Reserve", true, false, newRange},
	"event wait of a flush":         {"Synchronize", false, true, exhaust},
	"driver free of a flush":        {"Free", false, false, exhaust},
	"unmap of a flush":              {"Unmap", true, false, exhaust},
	"driver free of EmptyCache":     {"Free", false, false, empty},
	"unmap of EmptyCache":           {"Unmap", true, false, empty},
	"event wait of EmptyCache":      {"Synchronize", false, true, empty},
	"event wait, expandable memory": {"Synchronize", true, true, empty},
}

func grow(ctx context.Context, x *scene) error {
	_, err := x.c.Alloc(ctx, 200<<20, x.s)
	return err
}

func newRange(ctx context.Context, x *scene) error {
	_, err := x.c.Alloc(ctx, 30<<20, x.dev.stream(9))
	return err
}

// exhaust needs a flush, because of the limit.
func exhaust(ctx context.Context, x *scene) error {
	if err := x.c.SetMemoryLimit(x.c.MemoryReserved() + 30<<20); err != nil {
		panic(err)
	}
	_, err := x.c.Alloc(ctx, 80<<20, x.s)
	return err
}

func empty(ctx context.Context, x *scene) error { return x.c.EmptyCache(ctx) }

// TestHitsGoOnWhileTheDeviceHangs: while any call hangs, hits and frees on every stream, including
// that of the call, statistics and snapshots proceed. If one blocked the test would never end.
func TestHitsGoOnWhileTheDeviceHangs(t *testing.T) {
	for name, how := range blocking {
		t.Run(name, func(t *testing.T) {
			x := newScene(t, Config{ExpandableSegments: how.expandable})
			if how.pending {
				x.pend(t)
			}
			h := hangAt(x.dev, how.call)
			wait := async(func() error { return how.run(context.Background(), x) })
			<-h.entered
			for range 100 {
				for _, s := range []device.Stream{x.s, x.other} {
					before := x.c.Stats()
					b := mustAlloc(t, x.c, 1<<20, s)
					require.Equal(t, before.Hits+1, x.c.Stats().Hits)
					require.NoError(t, b.RecordStream(x.dev.stream(7)))
					require.NoError(t, b.Free())
					x.c.Snapshot()
				}
				require.NoError(t, x.c.check())
			}
			close(h.leave)
			require.NoError(t, wait())
			require.NoError(t, x.c.check())
		})
	}
}

// TestCancelledWaits: a context that ends while its call waits, in the device or for another call,
// ends the call, and no memory is lost.
func TestCancelledWaits(t *testing.T) {
	for name, how := range blocking {
		t.Run(name, func(t *testing.T) {
			x := newScene(t, Config{ExpandableSegments: how.expandable})
			if how.pending {
				x.pend(t)
			}
			h := hangAt(x.dev, how.call)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			first := async(func() error { return how.run(ctx, x) })
			<-h.entered
			waiting, give := context.WithCancel(context.Background())
			second := []func() error{
				async(func() error { _, err := x.c.Alloc(waiting, 100<<20, x.other); return err }),
				async(func() error { return x.c.EmptyCache(waiting) }),
			}
			give()
			for _, wait := range second {
				require.ErrorIs(t, wait(), context.Canceled)
			}
			if how.call == "Synchronize" {
				cancel()
				require.ErrorIs(t, first(), context.Canceled)
			} else {
				close(h.leave) // the driver can't be cancelled
				require.NoError(t, first())
			}
			require.NoError(t, x.c.check())
			require.NoError(t, x.c.SetMemoryLimit(1<<40))
			mustAlloc(t, x.c, 100<<20, x.other)
			require.NoError(t, x.c.EmptyCache(context.Background()))
			require.NoError(t, x.c.check())
			require.Zero(t, x.c.Stats().NumOOMs)
		})
	}
}

// TestGrowthFindsItsRangeTaken: while memory is mapped for a request that counts on the free block
// after it, another request takes that block. The growing request must search for space again, and
// map nothing twice.
func TestGrowthFindsItsRangeTaken(t *testing.T) {
	c, dev := newCache(t, Config{ExpandableSegments: true})
	s := dev.stream(1)
	var blocks []Block
	for range 4 {
		blocks = append(blocks, mustAlloc(t, c, 20<<20, s))
	}
	require.NoError(t, blocks[1].Free())
	require.NoError(t, c.EmptyCache(context.Background())) // a hole without memory
	require.NoError(t, blocks[2].Free())                   // and free memory after it
	h := hangAt(dev, "Map")
	var got Block
	wait := async(func() (err error) {
		got, err = c.Alloc(context.Background(), 40<<20, s)
		return err
	})
	<-h.entered
	taken := mustAlloc(t, c, 20<<20, s)
	require.Equal(t, blocks[2].Ptr(), taken.Ptr())
	close(h.leave)
	require.NoError(t, wait())
	require.NoError(t, c.check())
	for _, b := range []Block{blocks[0], taken, blocks[3]} {
		require.False(t, got.ptr < b.ptr+device.Ptr(b.size) && b.ptr < got.ptr+device.Ptr(got.size), "%v overlaps %v", got, b)
	}
}

// TestRacesForTheLastMemory: requests that run out of memory at once are served one after the
// other. The memory that one flush returns serves all of them, and no request takes the memory that
// another one's flush was for.
func TestRacesForTheLastMemory(t *testing.T) {
	for _, expandable := range []bool{false, true} {
		x := newScene(t, Config{ExpandableSegments: expandable})
		require.NoError(t, x.c.SetMemoryLimit(x.c.MemoryReserved()))
		h := hangAt(x.dev, map[bool]string{false: "Free", true: "Unmap"}[expandable])
		first := async(func() error { _, err := x.c.Alloc(context.Background(), 70<<20-1, x.s); return err })
		<-h.entered
		second := async(func() error { _, err := x.c.Alloc(context.Background(), 30<<20-1, x.other); return err })
		close(h.leave)
		require.NoError(t, errors.Join(first(), second()))
		st := x.c.Stats()
		require.EqualValues(t, 1, st.NumSyncAllStreams, "the second must find what the first flush gave back")
		require.Zero(t, st.NumOOMs)
		require.NoError(t, x.c.check())
	}
}

// TestManyRunOut: goroutines compete for a device that is too small for all. None hangs, failures
// are out-of-memory errors, and at the end every byte is returned.
func TestManyRunOutConcurrentSafe(t *testing.T) {
	for _, config := range []Config{{}, {ExpandableSegments: true}, {MaxSplitSizeMB: 32, GarbageCollectionThreshold: 0.6}} {
		config.PerProcessMemoryFraction = 0.25
		c, dev := newCache(t, config)
		var served atomic.Int64
		var wg sync.WaitGroup
		for g := range 6 {
			wg.Go(func() {
				s, side := dev.stream(uint64(g)), dev.stream(uint64(100+g))
				for i := range 60 {
					b, err := c.Alloc(context.Background(), int64(20+(i*7+g*13)%90)<<20, s)
					if err != nil {
						if !errors.Is(err, ErrOutOfMemory) {
							t.Error(err)
						}
						continue
					}
					served.Add(1)
					if err := errors.Join(b.RecordStream(side), b.Free()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		require.Positive(t, served.Load())
		require.NoError(t, c.check())
		require.NoError(t, c.EmptyCache(context.Background()))
		require.Zero(t, c.MemoryReserved())
		require.NoError(t, c.Close())
	}
}
