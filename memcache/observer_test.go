package memcache

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// spy records its calls, and uses the cache in each of them, so no lock may be held.
type spy struct {
	cache  *Cache
	events []OpInfo
	depths []int
}

type spyKey struct{}

func (s *spy) Start(ctx context.Context, op Op) (context.Context, Operation) {
	s.cache.Stats()
	depth, _ := ctx.Value(spyKey{}).(int)
	return context.WithValue(ctx, spyKey{}, depth+1), spied{s, depth}
}

type spied struct {
	*spy
	depth int
}

func (s spied) End(info OpInfo) {
	s.cache.Stats()
	s.events = append(s.events, info)
	s.depths = append(s.depths, s.depth)
}

func TestObserver(t *testing.T) {
	s := &spy{}
	c, dev := newCache(t, Config{Observer: s})
	s.cache = c
	st := dev.stream(9)
	a := mustAlloc(t, c, 100, st)
	b := mustAlloc(t, c, 2<<20, st)
	require.NoError(t, a.Free())
	require.NoError(t, b.FreeContext(context.Background()))
	d := mustAlloc(t, c, 600, st)
	require.NoError(t, c.EmptyCache(context.Background()))
	require.ErrorIs(t, a.Free(), ErrFreed)
	require.NoError(t, d.Free())
	for i := range s.events {
		require.Equal(t, c.reporter.cache, s.events[i].Cache)
		s.events[i].Err, s.events[i].Cache = nil, 0
	}
	other, _ := newCache(t, Config{})
	require.NotEqual(t, c.reporter.cache, other.reporter.cache, "serials are unique in a cache only")
	dn := "scripted"
	require.Equal(t, []OpInfo{
		{Op: OpDriverAlloc, Device: dn, Stream: 9, Bytes: 2 << 20, Pool: "small"},
		{Op: OpAlloc, Device: dn, Stream: 9, Shard: 9, Serial: 1, Seq: 1, Requested: 100, Bytes: 512, Pool: "small"},
		{Op: OpDriverAlloc, Device: dn, Stream: 9, Bytes: 20 << 20, Pool: "large"},
		{Op: OpAlloc, Device: dn, Stream: 9, Shard: 9, Serial: 2, Seq: 2, Requested: 2 << 20, Bytes: 2 << 20, Pool: "large"},
		{Op: OpFree, Device: dn, Stream: 9, Shard: 9, Serial: 1, Seq: 3, Requested: 100, Bytes: 512, Pool: "small"},
		{Op: OpFree, Device: dn, Stream: 9, Shard: 9, Serial: 2, Seq: 4, Requested: 2 << 20, Bytes: 2 << 20, Pool: "large"},
		{Op: OpAlloc, Device: dn, Stream: 9, Shard: 9, Serial: 3, Seq: 5, Requested: 600, Bytes: 1024, Pool: "small", Hit: true},
		{Op: OpSynchronize, Device: dn},
		{Op: OpDriverFree, Device: dn, Stream: 9, Bytes: 20 << 20, Pool: "large"},
		{Op: OpEmptyCache, Device: dn},
		{Op: OpFree, Device: dn, Stream: 9, Serial: 1, Bytes: 512},
		{Op: OpFree, Device: dn, Stream: 9, Shard: 9, Serial: 3, Seq: 6, Requested: 600, Bytes: 1024, Pool: "small"},
	}, s.events)
	require.Equal(t, []int{1, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0}, s.depths)
	require.Equal(t, []string{"alloc", "empty_cache", "alloc_failed", "unknown"}, []string{OpAlloc.String(), OpEmptyCache.String(), OpAllocFailed.String(), Op(99).String()})
}

// choosy follows one kind of operation.
type choosy struct {
	*spy
	op Op
}

func (s choosy) Start(ctx context.Context, op Op) (context.Context, Operation) {
	if op != s.op {
		return ctx, nil
	}
	return s.spy.Start(ctx, op)
}

// TestObserverOfFailures: a failed request is reported separately, once, also to an observer that
// follows no other operation.
func TestObserverOfFailures(t *testing.T) {
	for _, bytes := range []int64{64 << 20, 1 << 62} { // more than the limit, and more than any device has
		s := &spy{}
		c, dev := newCache(t, Config{MemoryLimit: 32 << 20, Observer: choosy{s, OpAllocFailed}})
		s.cache = c
		st := dev.stream(9)
		ctx := WithModule(context.Background(), "head")
		_, err := c.Alloc(ctx, bytes, st)
		require.ErrorIs(t, err, ErrOutOfMemory)
		label := Label{Module: "head"}
		var oom *OutOfMemoryError
		require.ErrorAs(t, err, &oom)
		require.Equal(t, label, oom.Label)
		require.Equal(t, []OpInfo{{Op: OpAllocFailed, Device: "scripted", Cache: c.reporter.cache, Stream: 9, Shard: 9, Requested: bytes,
			Pool: "large", Label: label, Err: err}}, s.events)
		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		_, err = c.Alloc(cancelled, 100, st)
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, mustAlloc(t, c, 100, st).Free())
		require.Len(t, s.events, 2, "of nothing else")
		require.Equal(t, OpInfo{Op: OpAllocFailed, Device: "scripted", Cache: c.reporter.cache, Stream: 9, Shard: 9, Requested: 100, Pool: "small",
			Label: label, Err: err}, s.events[1])
		require.NoError(t, c.Close())
	}
}

func TestMemoryLimit(t *testing.T) {
	c, dev := newCache(t, Config{})
	require.Equal(t, dev.Properties().TotalMemory, c.MemoryLimit())
	require.NoError(t, c.SetMemoryFraction(0.5))
	require.Equal(t, dev.Properties().TotalMemory/2, c.MemoryLimit())
	limited, _ := newCache(t, Config{MemoryLimit: 4 << 20})
	require.EqualValues(t, 4<<20, limited.MemoryLimit())
	large, dev := newCache(t, Config{MemoryLimit: 1 << 50})
	require.Equal(t, dev.Properties().TotalMemory, large.MemoryLimit(), "no more than there is")
}
