package memcache

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// tight is a cache of 100 MiB, in which requests for 40 or 60 MiB get segments of that size.
func tight(t *testing.T) (*Cache, *scriptedStream, *scriptedStream) {
	return tightWith(t, Config{})
}

func tightWith(t *testing.T, config Config) (*Cache, *scriptedStream, *scriptedStream) {
	config.MemoryLimit = 100 * mib
	c, dev := newCache(t, config)
	return c, dev.stream(1), dev.stream(2)
}

// asks makes a request on another goroutine; the returned function waits for the result.
func asks(ctx context.Context, c *Cache, bytes int64, s device.Stream) func() (Block, error) {
	var b Block
	done := async(func() (err error) { b, err = c.Alloc(ctx, bytes, s); return err })
	return func() (Block, error) { err := done(); return b, err }
}

// TestWaitForMemoryOfAnotherTask: the request is served as soon as the other task frees, on any
// stream, and not before.
func TestWaitForMemoryOfAnotherTask(t *testing.T) {
	for name, how := range map[string]struct {
		config Config
		record bool
	}{
		"free at once":                {},
		"free with a recorded stream": {record: true},
		"free to the driver":          {config: Config{NoCaching: true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, s, other := tightWith(t, how.config)
				held, err := c.Alloc(c.Wait(t.Context()), 80*mib, s)
				require.NoError(t, err)
				var b Block
				var served bool
				go func() {
					b, err = c.Alloc(c.Wait(t.Context()), 60*mib, other)
					served = true
				}()
				time.Sleep(time.Hour)
				require.False(t, served)
				if how.record {
					require.NoError(t, held.RecordStream(other))
				}
				require.NoError(t, held.Free())
				synctest.Wait()
				require.True(t, served)
				require.NoError(t, err)
				require.NoError(t, errors.Join(b.Free(), c.Close()))
				require.Zero(t, c.grower.waits.count.Load())
			})
		})
	}
}

// TestWaitForMemoryOfAFree that is pending, and no longer belongs to a task.
func TestWaitForMemoryOfAFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, dev := newCache(t, Config{MemoryLimit: 100 * mib})
		s, slow := dev.stream(1), newRecorder(dev, 2)
		held, err := c.Alloc(c.Wait(t.Context()), 80*mib, s)
		require.NoError(t, err)
		require.NoError(t, held.RecordStream(slow))
		free := async(held.Free)
		<-slow.entered
		result := asks(c.Wait(t.Context()), c, 60*mib, s)
		synctest.Wait()
		require.EqualValues(t, 1, c.grower.waits.count.Load())
		close(slow.leave)
		require.NoError(t, free())
		b, err := result()
		require.NoError(t, err)
		require.NoError(t, errors.Join(b.Free(), c.Close()))
	})
}

// TestWaitForMemoryOfAFreeYetToTell: a request failed just before a block was freed, and its turn
// ends before the free gives the turn. It gets another turn instead of an error.
func TestWaitForMemoryOfAFreeYetToTell(t *testing.T) {
	for name, config := range map[string]Config{"free at once": {}, "free to the driver": {NoCaching: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, s, other := tightWith(t, config)
				held, err := c.Alloc(c.Wait(t.Context()), 80*mib, s)
				require.NoError(t, err)
				result := asks(c.Wait(t.Context()), c, 60*mib, other)
				synctest.Wait()

				waits := &c.grower.waits
				waits.mu.Lock() // the free cannot give the turn
				free := async(held.Free)
				for c.Stats().ActiveBytes.All.Current != 0 {
					runtime.Gosched()
				}
				waits.giveTurn()
				waits.mu.Unlock()
				require.NoError(t, free())
				b, err := result()
				require.NoError(t, err)
				require.NoError(t, errors.Join(b.Free(), c.Close()))
			})
		})
	}
}

// TestWaitForMemoryEnds with the context: the error has the figures, the time, and the context's own error.
func TestWaitForMemoryEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, other := tight(t)
		held, err := c.Alloc(c.Wait(t.Context()), 80*mib, s)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err = c.Alloc(c.Wait(ctx), 60*mib, other)
		require.ErrorIs(t, err, ErrOutOfMemory)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		var oom *OutOfMemoryError
		require.ErrorAs(t, err, &oom)
		require.Equal(t, 5*time.Second, oom.Waited)
		require.EqualValues(t, 80*mib, oom.Allocated)
		require.ErrorContains(t, err, "waited for 5s: context deadline exceeded")
		require.EqualValues(t, 1, c.Stats().NumOOMs)

		ctx, cancel = context.WithCancel(t.Context())
		result := asks(c.Wait(ctx), c, 60*mib, other)
		second := asks(c.Wait(t.Context()), c, 70*mib, other)
		synctest.Wait()
		cancel()
		_, err = result()
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, held.Free())
		b, err := second()
		require.NoError(t, err, "who was behind is first now")
		require.NoError(t, errors.Join(b.Free(), c.Close()))
	})
}

// TestWaitForMemoryOfNobody: a request fails at once if only its own task, or no task, holds
// memory.
func TestWaitForMemoryOfNobody(t *testing.T) {
	c, s, other := tight(t)
	ctx := c.Wait(t.Context())
	kept, err := c.Alloc(t.Context(), 30*mib, s)
	require.NoError(t, err)
	own, err := c.Alloc(ctx, 30*mib, s)
	require.NoError(t, err)
	for _, inside := range []context.Context{ctx, c.Wait(ctx), WithModule(ctx, "layer1")} {
		_, err = c.Alloc(inside, 60*mib, other)
		require.ErrorIs(t, err, ErrOutOfMemory)
		require.ErrorContains(t, err, "no running task holds memory")
	}
	require.NoError(t, own.Free())
	b, err := c.Alloc(ctx, 60*mib, other)
	require.NoError(t, err)
	require.NoError(t, errors.Join(b.Free(), kept.Free(), c.Close()))
}

// TestWaitForMemoryInOrder: requests are served in the order of arrival, even if the second one
// would fit before.
func TestWaitForMemoryInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, other := tight(t)
		a, err := c.Alloc(c.Wait(t.Context()), 40*mib, s)
		require.NoError(t, err)
		b, err := c.Alloc(c.Wait(t.Context()), 50*mib, s)
		require.NoError(t, err)
		small, err := c.Alloc(t.Context(), 1000, s)
		require.NoError(t, err)
		first := asks(c.Wait(t.Context()), c, 70*mib, other)
		synctest.Wait()
		second := asks(c.Wait(t.Context()), c, 20*mib, other)
		third := asks(c.Wait(t.Context()), c, 1000, s)
		synctest.Wait()
		require.NoError(t, a.Free())
		synctest.Wait()
		require.EqualValues(t, 3, c.grower.waits.count.Load(), "the others do not overtake, though there are 20 MiB, and a free block for the third")
		hit, err := c.Alloc(t.Context(), 30*mib, s)
		require.NoError(t, err, "who is of no task does not wait")
		require.NoError(t, errors.Join(hit.Free(), b.Free()))
		x, err := first()
		require.NoError(t, err)
		y, err := second()
		require.NoError(t, err)
		z, err := third()
		require.NoError(t, err)
		require.NoError(t, errors.Join(x.Free(), y.Free(), z.Free(), small.Free(), c.Close()))
	})
}

// TestWaitForMemoryInACircle: of tasks that wait for each other's memory the last one fails, and
// the first continues after that one has freed.
func TestWaitForMemoryInACircle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, other := tight(t)
		one, two := c.Wait(t.Context()), c.Wait(t.Context())
		a, err := c.Alloc(one, 40*mib, s)
		require.NoError(t, err)
		b, err := c.Alloc(two, 40*mib, other)
		require.NoError(t, err)
		last, err := c.Alloc(c.Wait(t.Context()), 10*mib, s)
		require.NoError(t, err)
		first := asks(one, c, 60*mib, s)
		synctest.Wait()
		second := asks(two, c, 60*mib, other)
		synctest.Wait()
		third := asks(c.Wait(t.Context()), c, 90*mib, s) // holds nothing: that it fails would not help
		synctest.Wait()
		require.EqualValues(t, 3, c.grower.waits.count.Load())
		require.NoError(t, last.Free())
		_, err = second()
		require.ErrorContains(t, err, "no running task holds memory")
		synctest.Wait()
		require.EqualValues(t, 2, c.grower.waits.count.Load(), "the others wait for what the second frees now")
		require.NoError(t, b.Free())
		x, err := first()
		require.NoError(t, err)
		require.NoError(t, errors.Join(a.Free(), x.Free()))
		y, err := third()
		require.NoError(t, err)
		require.NoError(t, errors.Join(y.Free(), c.Close()))
	})
}

// TestWaitForMemoryLetsHoldersGoOn: a task that queues after one that waits for it is served when
// there is enough memory.
func TestWaitForMemoryLetsHoldersGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, other := tight(t)
		holder := c.Wait(t.Context())
		held, err := c.Alloc(holder, 60*mib, s)
		require.NoError(t, err)
		first := asks(c.Wait(t.Context()), c, 80*mib, other)
		synctest.Wait()
		more, err := c.Alloc(holder, 20*mib, s)
		require.NoError(t, err)
		require.EqualValues(t, 1, c.grower.waits.count.Load())
		require.NoError(t, errors.Join(held.Free(), more.Free()))
		b, err := first()
		require.NoError(t, err)
		require.NoError(t, errors.Join(b.Free(), c.Close()))
	})
}

// TestWaitForMemoryAndTheRest: a higher limit and the end of a pool serve waiting requests, and
// Close refuses them.
func TestWaitForMemoryAndTheRest(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, c *Cache, p *Pool) error{
		"limit":   func(t *testing.T, c *Cache, p *Pool) error { return c.SetMemoryFraction(1) },
		"release": func(t *testing.T, c *Cache, p *Pool) error { return p.Release() },
		"close":   func(t *testing.T, c *Cache, p *Pool) error { _ = c.Close(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, s, other := tight(t)
				pool, err := c.NewPool(PoolOptions{})
				require.NoError(t, err)
				b, err := c.Alloc(pool.Context(t.Context()), 50*mib, s)
				require.NoError(t, err)
				require.NoError(t, b.Free(), "the pool keeps it")
				_, err = c.Alloc(c.Wait(t.Context()), 20*mib, s)
				require.NoError(t, err)
				result := asks(c.Wait(t.Context()), c, 60*mib, other)
				synctest.Wait()
				require.EqualValues(t, 1, c.grower.waits.count.Load())
				require.NoError(t, end(t, c, pool))
				_, err = result()
				if name == "close" {
					require.ErrorIs(t, err, ErrClosed)
				} else {
					require.NoError(t, err)
				}
			})
		})
	}
}

// TestWaitForMemoryOfManyTasks: tasks that need up to all of the memory, in two parts, and always
// free it, all complete. A request fails only if tasks wait in a circle, and then another task
// holds the rest.
func TestWaitForMemoryOfManyTasks(t *testing.T) {
	for _, config := range []Config{{}, {ExpandableSegments: true}, {Exact: true}, {NoCaching: true}} {
		config.MemoryLimit = 100 * mib
		c, dev := newCache(t, config)
		var wg sync.WaitGroup
		for g := range uint64(6) {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(1, g))
				s, side := dev.stream(1+g), dev.stream(20+g)
				for range scaled(300) {
					ctx := c.Wait(context.Background())
					a, err := c.Alloc(ctx, 1+r.Int64N(100*mib), s)
					if err != nil {
						t.Errorf("a task that holds nothing: %v", err)
						return
					}
					var b Block
					if r.IntN(2) == 0 {
						if b, err = c.Alloc(ctx, 1+r.Int64N(60*mib), s); err != nil && !errors.Is(err, errNobody) {
							t.Error(err)
						}
					}
					if r.IntN(2) == 0 {
						err = a.RecordStream(side)
					} else {
						err = nil
					}
					if err = errors.Join(err, b.Free(), a.Free()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		require.Zero(t, c.grower.waits.count.Load())
		require.NoError(t, errors.Join(c.check(), c.Close()))
	}
}

// TestWaitForMemoryOfSeveralCaches: a context has one task per cache, and each cache ignores those
// of others.
func TestWaitForMemoryOfSeveralCaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, _ := tight(t)
		d, u, v := tight(t)
		ctx := d.Wait(c.Wait(t.Context()))
		a, err := c.Alloc(ctx, 80*mib, s)
		require.NoError(t, err)
		_, err = c.Alloc(ctx, 80*mib, s)
		require.ErrorContains(t, err, "no running task holds memory", "its own")
		b, err := d.Alloc(ctx, 80*mib, u)
		require.NoError(t, err)
		result := asks(d.Wait(t.Context()), d, 80*mib, v)
		synctest.Wait()
		require.NoError(t, b.Free())
		e, err := result()
		require.NoError(t, err)
		require.NoError(t, errors.Join(a.Free(), e.Free(), c.Close(), d.Close()))
	})
}
