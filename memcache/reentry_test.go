package memcache

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
)

// TestFunctionsThatAllocate: a reclaimer and a function of OnOutOfMemory may allocate. If their
// requests fail they call no function of their kind again, with any context and at any depth.
func TestFunctionsThatAllocate(t *testing.T) {
	for _, depth := range []int{0, 200} {
		c, dev := newCache(t, Config{MemoryLimit: 100 * mib})
		s := dev.stream(1)
		var alloc func(depth int, bytes int64) (Block, error)
		alloc = func(depth int, bytes int64) (Block, error) {
			if depth == 0 {
				return c.Alloc(context.Background(), bytes, s)
			}
			return alloc(depth-1, bytes)
		}
		asked, told := 0, 0
		c.OnPressure(func(context.Context, int64) int64 {
			asked++
			_, err := alloc(depth, 200*mib)
			require.ErrorIs(t, err, ErrOutOfMemory)
			b, err := alloc(depth, 50*mib)
			require.NoError(t, errors.Join(err, b.Free()))
			return 0
		})
		c.OnOutOfMemory(func(context.Context, *OutOfMemoryError) {
			told++
			_, err := alloc(depth, 200*mib)
			require.ErrorIs(t, err, ErrOutOfMemory)
		})
		_, err := c.Alloc(t.Context(), 300*mib, s)
		require.ErrorIs(t, err, ErrOutOfMemory)
		// The reclaimer's own request finally fails, and so does the caller's. Each function's
		// request asks the reclaimer, unless that is what made the request.
		require.Equal(t, []int{2, 2}, []int{told, asked})
		asked, told = 0, 0
		b, err := c.Alloc(t.Context(), 10*mib, s)
		require.NoError(t, errors.Join(err, b.Free()))
		require.Zero(t, asked+told)
		_, err = c.Alloc(t.Context(), 300*mib, s)
		require.ErrorIs(t, err, ErrOutOfMemory)
		require.Positive(t, asked, "it is asked again by later requests")
	}
}

// TestReclaimersOfManyGoroutines: requests of several goroutines call the same function at once.
func TestReclaimersOfManyGoroutines(t *testing.T) {
	c, dev := newCache(t, Config{MemoryLimit: 100 * mib})
	held := mustAlloc(t, c, 90*mib, dev.stream(0))
	var inside sync.WaitGroup
	inside.Add(8)
	var once sync.Once
	c.OnPressure(func(context.Context, int64) (freed int64) {
		inside.Done()
		inside.Wait() // for all of them
		once.Do(func() {
			require.NoError(t, held.Free())
			freed = 90 * mib
		})
		return freed
	})
	var wg sync.WaitGroup
	served := make(chan bool, 8)
	for i := range 8 {
		s := dev.stream(uint64(i))
		wg.Go(func() {
			_, err := c.Alloc(t.Context(), 60*mib, s)
			served <- err == nil
		})
	}
	wg.Wait()
	close(served)
	n := 0
	for ok := range served {
		if ok {
			n++
		}
	}
	require.Equal(t, 1, n)
}

// silent is a device whose MemInfo fails.
type silent struct{ *null.Device }

var errSilent = errors.New("no figures")

func (silent) MemInfo() (int64, int64, error) { return 0, 0, errSilent }

// TestNoFiguresOfTheDriver: a request without memory is handled as always if the driver does not
// report how much is free: reclaimers are called, and the error is out of memory.
func TestNoFiguresOfTheDriver(t *testing.T) {
	dev, err := null.New(null.Config{Capacity: 100 * mib})
	require.NoError(t, err)
	c, err := New(silent{dev}, Config{})
	require.NoError(t, err)
	s, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	held := mustAlloc(t, c, 90*mib, on{s, silent{dev}})
	asked := 0
	c.OnPressure(func(context.Context, int64) int64 {
		if asked++; asked > 1 {
			return 0
		}
		require.NoError(t, held.Free())
		return 90 * mib
	})
	mustAlloc(t, c, 60*mib, on{s, silent{dev}})
	require.Equal(t, 1, asked)
	_, err = c.Alloc(t.Context(), 60*mib, on{s, silent{dev}})
	var oom *OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	require.EqualValues(t, -1, oom.Free)
	require.EqualValues(t, 100*mib, oom.Total)
	require.ErrorIs(t, err, errSilent)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
	require.ErrorContains(t, err, "the device has 100.00 MiB, and does not report how much is free")
}

// on returns a stream of another device.
type on struct {
	device.Stream
	dev device.Device
}

func (s on) Device() device.Device { return s.dev }

// TestLargestSizes: no size overflows.
func TestLargestSizes(t *testing.T) {
	for _, options := range []string{"", "roundup_power2_divisions:8", "large_segment_size_mb:1099511627776", "no_caching:True"} {
		c, err := ParseConfig(options)
		require.NoError(t, err)
		for shift := range 63 {
			for _, n := range []int64{1<<shift - 1, 1 << shift, 1<<shift + 1, math.MaxInt64 >> shift} {
				require.GreaterOrEqual(t, c.RoundSize(n), n, "%s: %d", options, n)
				require.GreaterOrEqual(t, c.SegmentSize(n), n, "%s: %d", options, n)
			}
		}
		require.Zero(t, c.RoundSize(math.MinInt64))
		require.Zero(t, c.SegmentSize(math.MinInt64))
	}
}

// TestShallowErrors: a driver error is wrapped once, however many granules were mapped before.
func TestShallowErrors(t *testing.T) {
	dev, err := null.New(null.Config{Capacity: 8 << 30})
	require.NoError(t, err)
	c, err := New(dev, Config{ExpandableSegments: true, ExpandableGranuleMB: 2})
	require.NoError(t, err)
	s, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	_, err = c.Alloc(t.Context(), 10<<30, s)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
	depth := 0
	for list := []error{err}; len(list) > 0; depth++ {
		var next []error
		for _, e := range list {
			switch e := e.(type) {
			case interface{ Unwrap() []error }:
				next = append(next, e.Unwrap()...)
			case interface{ Unwrap() error }:
				if cause := e.Unwrap(); cause != nil {
					next = append(next, cause)
				}
			}
		}
		list = next
	}
	require.LessOrEqual(t, depth, 10)
}

// TestLeaksHaveNames: Close reports the labels of blocks that were not freed.
func TestLeaksHaveNames(t *testing.T) {
	c, dev := newCache(t, Config{})
	for i := range int64(5) {
		ctx := WithModule(WithCategory(t.Context(), CategoryActivation), fmt.Sprint("encoder.", i))
		_, err := c.Alloc(ctx, (i+1)*mib, dev.stream(1))
		require.NoError(t, err)
	}
	err := c.Close()
	require.EqualError(t, err, "memcache: Close: blocks that were never freed: 5, of 15.00 MiB together; encoder.4 (activation) holds 5.00 MiB, "+
		"encoder.3 (activation) holds 4.00 MiB, encoder.2 (activation) holds 3.00 MiB")
}

// TestString: formatting a cache with fmt is short, and does not race with its use.
func TestString(t *testing.T) {
	c, dev := newCache(t, Config{})
	mustAlloc(t, c, 3*mib, dev.stream(1))
	require.Regexp(t, `^cache on \S+: 3\.00 MiB allocated, 20\.00 MiB reserved$`, c.String())
	for _, verb := range []string{"%v", "%+v", "%s"} {
		require.Equal(t, c.String(), fmt.Sprintf(verb, c))
	}
	var none *Cache
	require.True(t, strings.HasSuffix(none.String(), "(nil)"))
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 100 {
			_ = mustAlloc(t, c, mib, dev.stream(2)).Free()
		}
	})
	for range 100 {
		_ = fmt.Sprint(c)
	}
	wg.Wait()
}
