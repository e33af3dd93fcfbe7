package memcache

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// clocked is a call with its changes, and with its start and end by one clock, as its observer saw
// them.
type clocked struct {
	OpInfo
	from, to int64
	delta    int64 // bytes
}

// clock is an observer that records the start and end of calls.
type clock struct {
	now  atomic.Int64
	mu   sync.Mutex
	seen []clocked
}

type ticking struct {
	*clock
	from int64
}

func (c *clock) Start(ctx context.Context, _ Op) (context.Context, Operation) {
	from := c.now.Add(1)
	runtime.Gosched() // to let others in between
	return ctx, ticking{c, from}
}

func (o ticking) End(info OpInfo) {
	to := o.now.Add(1)
	if info.Err != nil || info.Op != OpAlloc && info.Op != OpFree {
		return
	}
	delta := info.Bytes
	if info.Op == OpFree {
		delta = -delta
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = append(o.seen, clocked{info, o.from, to, delta})
}

// order is the constraint on a total order of the calls: each shard's calls are ordered by their
// sequence, and a call that ended before another began comes first.
type order struct {
	shards [][]clocked
}

func newOrder(seen []clocked) order {
	byShard := map[uint64][]clocked{}
	for _, e := range seen {
		byShard[e.Shard] = append(byShard[e.Shard], e)
	}
	var o order
	for _, list := range byShard {
		slices.SortFunc(list, func(a, b clocked) int { return int(a.Seq) - int(b.Seq) })
		o.shards = append(o.shards, list)
	}
	return o
}

// bounds returns the smallest and the largest peak of any total order. The search visits all
// reachable states "n calls of each shard are complete", so rounds must be short.
func (o order) bounds(start int64) (least, most int64) {
	type key [4]uint8
	type peaks struct{ least, most int64 }
	reached := map[key]peaks{{}: {start, start}}
	total := 0
	for _, s := range o.shards {
		total += len(s)
	}
	for range total {
		next := map[key]peaks{}
		for k, p := range reached {
			sum, first := start, int64(1<<62) // the first end among the incomplete calls
			for i, s := range o.shards {
				for _, e := range s[:k[i]] {
					sum += e.delta
				}
				for _, e := range s[k[i]:] {
					first = min(first, e.to)
				}
			}
			for i, s := range o.shards {
				if int(k[i]) == len(s) || s[k[i]].from > first {
					continue
				}
				n, now := k, sum+s[k[i]].delta
				n[i]++
				q := peaks{max(p.least, now), max(p.most, now)}
				if old, ok := next[n]; ok {
					q = peaks{min(q.least, old.least), max(q.most, old.most)}
				}
				next[n] = q
			}
		}
		reached = next
	}
	least = 1 << 62
	for _, p := range reached {
		least, most = min(least, p.least), max(most, p.most)
	}
	return least, most
}

// reaches reports whether some total order has exactly this peak: it never exceeds it, and reaches
// it.
func (o order) reaches(start, peak int64) bool {
	type key struct {
		at      [4]uint8
		touched bool
	}
	reached := map[key]bool{{touched: start == peak}: true}
	total := 0
	for _, s := range o.shards {
		total += len(s)
	}
	for range total {
		next := map[key]bool{}
		for k := range reached {
			sum, first := start, int64(1<<62)
			for i, s := range o.shards {
				for _, e := range s[:k.at[i]] {
					sum += e.delta
				}
				for _, e := range s[k.at[i]:] {
					first = min(first, e.to)
				}
			}
			for i, s := range o.shards {
				if int(k.at[i]) == len(s) || s[k.at[i]].from > first {
					continue
				}
				now := sum + s[k.at[i]].delta
				if now > peak {
					continue
				}
				n := k
				n.at[i]++
				n.touched = k.touched || now == peak
				next[n] = true
			}
		}
		reached = next
	}
	for k := range reached {
		if k.touched {
			return true
		}
	}
	return start == peak
}

// TestPeakIsOfSomeOrderConcurrentSafe: for concurrent goroutines, the peak is the largest sum along
// some total order of their calls that agrees with each shard's sequence and with the times of the
// calls.
func TestPeakIsOfSomeOrderConcurrentSafe(t *testing.T) {
	const goroutines = 4
	o := &clock{}
	dev := newScripted(1 << 40)
	c, err := New(dev, Config{Observer: o})
	require.NoError(t, err)
	var blocks [goroutines][]Block
	var between, distinct int
	for round := range scaled(2000) {
		c.ResetPeakStats()
		o.seen = o.seen[:0]
		start := c.MemoryAllocated()
		begin := make(chan struct{})
		var wg sync.WaitGroup
		for g := range goroutines {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(round), uint64(g)))
				s := dev.stream(uint64(g))
				<-begin
				for range 6 {
					if n := len(blocks[g]); n > 4 || n > 0 && r.IntN(2) == 0 {
						if err := blocks[g][n-1].Free(); err != nil {
							t.Error(err)
						}
						blocks[g] = blocks[g][:n-1]
					} else if b, err := c.Alloc(context.Background(), 512<<r.IntN(8), s); err != nil {
						t.Error(err)
					} else {
						blocks[g] = append(blocks[g], b)
					}
				}
			})
		}
		close(begin)
		wg.Wait()
		peak := c.MaxMemoryAllocated()
		order := newOrder(o.seen)
		least, most := order.bounds(start)
		require.LessOrEqual(t, least, peak, "round %d", round)
		require.GreaterOrEqual(t, most, peak, "round %d", round)
		require.True(t, order.reaches(start, peak), "round %d: no order has the peak %d; they have %d to %d", round, peak, least, most)
		if least < most {
			distinct++
			if peak > least {
				between++
			}
		}
	}
	t.Logf("%d rounds had a choice of orders; in %d of them the peak was not the least", distinct, between)
}

// TestOrders tests the check of orders itself, on calls of two shards.
func TestOrders(t *testing.T) {
	at := func(shard, seq uint64, from, to, delta int64) clocked {
		return clocked{OpInfo{Shard: shard, Seq: seq}, from, to, delta}
	}
	concurrent := newOrder([]clocked{at(1, 1, 1, 10, 5), at(1, 2, 11, 12, -5), at(2, 1, 2, 20, 7)})
	least, most := concurrent.bounds(0)
	require.Equal(t, []int64{7, 12}, []int64{least, most})
	require.True(t, concurrent.reaches(0, 7))
	require.True(t, concurrent.reaches(0, 12))
	require.False(t, concurrent.reaches(0, 8))
	later := newOrder([]clocked{at(1, 1, 1, 2, 5), at(1, 2, 3, 4, -5), at(2, 1, 5, 6, 7)})
	require.False(t, later.reaches(0, 12))
	require.True(t, later.reaches(0, 7))
}
