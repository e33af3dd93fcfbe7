package memtest

import (
	"errors"
	"testing"

	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache"
)

// NoLeak fails the test if blocks of the cache that were not allocated when NoLeak was called are
// allocated at the test's end, after its subtests and the functions that are registered with
// t.Cleanup later. Call it first. The failure lists the blocks by category, module and line. A
// freed block that waits for a stream is not a leak. Neither is a block of
// memcache.CategoryWorkspace, because package tensor keeps some until the runtime is closed. A
// cache that is closed by then is a failure, because its blocks are gone. To close it, call
// t.Cleanup before NoLeak instead of using defer.
func NoLeak(t testing.TB, cache *memcache.Cache) {
	t.Helper()
	keepStacks(t, cache)
	before := make(map[uint64]bool)
	for _, b := range allocated(cache) {
		before[b.Serial] = true
	}
	t.Cleanup(func() {
		t.Helper()
		if closed(cache) {
			t.Errorf("memtest: the cache was closed before NoLeak could check it: close it in a function of t.Cleanup, set before NoLeak")
		}
		var leaked []memcache.Holding
		var bytes int64
		for _, b := range allocated(cache) {
			if !before[b.Serial] {
				leaked = append(leaked, memcache.Holding{Label: b.Label, Stack: b.Stack, Blocks: 1, Bytes: b.Size})
				bytes += b.Size
			}
		}
		if leaked != nil {
			t.Errorf("memtest: %s that the test has allocated are not freed\n%s", sizes.Format(bytes), holders(leaked))
		}
	})
}

func closed(cache *memcache.Cache) bool {
	s, err := cache.StreamHistory(memcache.HistoryOptions{})
	if err == nil {
		s.Close()
	}
	return errors.Is(err, memcache.ErrClosed)
}

// allocated returns the blocks that callers hold, without workspaces.
func allocated(cache *memcache.Cache) (blocks []memcache.BlockSnapshot) {
	for _, s := range cache.Snapshot().Segments {
		for _, b := range s.Blocks {
			if b.State == memcache.BlockAllocated && b.Label.Category != memcache.CategoryWorkspace {
				blocks = append(blocks, b)
			}
		}
	}
	return blocks
}
