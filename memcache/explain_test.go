package memcache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

// shortProgram is a random program that runs out of memory: its calls, until a request finally
// fails.
type shortProgram struct {
	capacity int64
	limit    int64
	seed     uint64
}

// run makes at most n calls on a new cache. It returns the cache and the last request with its
// error, which is nil unless the last request ran out of memory.
func (p *shortProgram) run(t *testing.T, config Config, most int) (c *Cache, again func() error, calls int, err error) {
	dev, err := null.New(null.Config{Capacity: p.capacity})
	require.NoError(t, err)
	config.MemoryLimit = p.limit
	c, err = New(dev, config)
	require.NoError(t, err)
	streams := []device.Stream{cisterntest.Stream(t, dev), cisterntest.Stream(t, dev)}
	pool, inPool := newPool(t, c, PoolOptions{})
	require.NotNil(t, pool)
	r := rand.New(rand.NewPCG(p.seed, 7))
	var held []Block
	for calls = 1; calls <= most; calls++ {
		free, at, ctx, s := r.IntN(5) < 2, r.IntN(1<<30), context.Background(), streams[min(r.IntN(4), 1)]
		bytes := int64(1) << (12 + r.IntN(15))
		bytes += r.Int64N(bytes)
		if r.IntN(8) == 0 {
			ctx = inPool
		}
		if free && len(held) > 0 {
			i := at % len(held)
			require.NoError(t, held[i].Free())
			held[i] = held[len(held)-1]
			held = held[:len(held)-1]
			continue
		}
		again = func() error {
			b, err := c.Alloc(ctx, bytes, s)
			if err == nil {
				held = append(held, b)
			}
			return err
		}
		if err = again(); err != nil && calls < most && most < 1000 {
			held = append(held, Block{}) // the program with other options goes on
			err = nil
		}
		if err != nil {
			return c, again, calls, err
		}
	}
	return c, again, calls - 1, nil
}

// TestAdvice tries the advice in the errors of random programs. Calls and limits must serve the
// request that failed. Options that place earlier requests differently must do so in four of five
// cases.
func TestAdvice(t *testing.T) {
	served, tried := map[string]int{}, map[string]int{}
	seeds := uint64(4000)
	if testing.Short() {
		seeds = 2000
	}
	for seed := range seeds {
		p := &shortProgram{capacity: 1 << 30, seed: seed, limit: 400 * mib * int64(seed%2)}
		if p.limit == 0 {
			p.capacity = 400 * mib
		}
		c, again, calls, err := p.run(t, Config{}, 1000)
		var oom *OutOfMemoryError
		require.ErrorAs(t, err, &oom)
		kind := strings.SplitN(strings.SplitN(oom.Advice, " ", 2)[0], ":", 2)[0]
		switch kind {
		case "EmptyCache":
			var number uint64
			_, err := fmt.Sscanf(oom.Advice, "EmptyCache of private pool %d ", &number)
			require.NoError(t, err, oom.Advice)
			require.NoError(t, c.openPools[PoolID{0, number}].EmptyCache(t.Context()))
			require.NoError(t, again(), "seed %d: %v", seed, oom)
		case "reuse_across_streams":
			config, err := c.Config().With(strings.SplitN(oom.Advice, " ", 2)[0])
			require.NoError(t, errors.Join(err, c.SetConfig(t.Context(), config)))
			require.NoError(t, again(), "seed %d: %v", seed, oom)
		case "memory_limit":
			var limit int64
			_, err := fmt.Sscanf(oom.Advice, "memory_limit:%d ", &limit)
			require.NoError(t, err, oom.Advice)
			require.NoError(t, c.SetMemoryLimit(limit-1))
			require.Error(t, again(), "seed %d: less is not enough: %v", seed, oom)
			require.NoError(t, c.SetMemoryLimit(limit))
			require.NoError(t, again(), "seed %d: %v", seed, oom)
		case "expandable_segments", "max_split_size_mb":
			config, err := ParseConfig(strings.SplitN(oom.Advice, " ", 2)[0])
			require.NoError(t, err)
			if _, _, _, err = p.run(t, config, calls); err == nil {
				served[kind]++
			}
		case "no":
			if p.limit == 0 {
				require.Greater(t, oom.Segment, oom.Free, "seed %d: %v", seed, oom)
			}
			require.ErrorIs(t, again(), ErrOutOfMemory)
		default:
			t.Fatalf("seed %d: %v", seed, oom)
		}
		tried[kind]++
	}
	t.Log(served, "of", tried)
	require.Len(t, tried, 6)
	for _, kind := range []string{"expandable_segments", "max_split_size_mb"} {
		require.GreaterOrEqual(t, 5*served[kind], 4*tried[kind], kind)
	}
}

// TestAdviceOfAnIdleThreshold: the error reports that a threshold has no effect without a limit,
// and does not with one.
func TestAdviceOfAnIdleThreshold(t *testing.T) {
	for limit, idle := range map[int64]bool{0: true, 300 * mib: false} {
		c, dev := newCache(t, Config{GarbageCollectionThreshold: 0.5, MemoryLimit: limit})
		dev.failures = 2
		_, err := c.Alloc(t.Context(), 2<<30, dev.stream(1))
		var oom *OutOfMemoryError
		require.ErrorAs(t, err, &oom)
		require.Equal(t, idle, strings.Contains(oom.Advice, "garbage_collection_threshold"), oom.Advice)
	}
}
