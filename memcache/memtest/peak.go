package memtest

import (
	"context"
	"testing"

	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache"
)

// Peak runs f, and fails the test if more than budget bytes of the cache are allocated at any
// moment meanwhile. Bytes are those of whole blocks. The failure lists their holders at the first
// moment of the peak, by category, module and line. The test continues.
func Peak(t testing.TB, cache *memcache.Cache, budget int64, f func()) {
	t.Helper()
	if budget < 0 {
		t.Fatalf("memtest: the budget is %d bytes", budget)
	}
	p := peakOf(t, cache, f)
	if p.Allocated <= budget {
		return
	}
	t.Errorf("memtest: the peak is %s, %d bytes: %d more than the budget of %d\n%s",
		sizes.Format(p.Allocated), p.Allocated, p.Allocated-budget, budget, holders(p.Holdings))
}

// peakOf runs f, and returns the holders of the cache's memory at the peak.
func peakOf(t testing.TB, cache *memcache.Cache, f func()) memcache.Profile {
	t.Helper()
	if f == nil {
		t.Fatal("memtest: the function is nil")
	}
	keepStacks(t, cache)
	_, scope := cache.Scope(context.Background(), "memtest")
	defer scope.End() // f may panic, or end the test
	f()
	return scope.EndProfile()
}

// keepStacks makes the cache keep the stacks of its blocks.
func keepStacks(t testing.TB, cache *memcache.Cache) {
	t.Helper()
	if cache == nil {
		t.Fatal("memtest: the cache is nil")
	}
	if closed(cache) {
		t.Fatal("memtest: the cache is closed")
	}
	// a lower level would stop stacks that the program keeps
	if cache.SetHistoryStacks(memcache.StacksAll) == nil {
		return
	}
	if err := cache.RecordHistory(memcache.HistoryOptions{Entries: 1, Stacks: memcache.StacksState}); err != nil {
		t.Fatalf("memtest: %v", err)
	}
}
