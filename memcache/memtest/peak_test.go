package memtest_test

import (
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/memcache/memtest"
)

// TestPeak: the budget counts memory that was allocated before or is freed meanwhile, but no later
// memory.
func TestPeak(t *testing.T) {
	cache, s := open(t)
	weights := alloc(t, cache, s, memcache.CategoryParameter, "w (Linear)", 4000)
	for budget, fails := range map[int64]bool{12288: false, 12287: true, 0: true, -1: true, 1 << 40: false} {
		r, _ := record("TestStep", func(t testing.TB) {
			memtest.Peak(t, cache, budget, func() { free(t, alloc(t, cache, s, memcache.CategoryActivation, "a", 8192)) })
			later := alloc(t, cache, s, memcache.CategoryActivation, "later", 1<<20)
			free(t, later)
		})
		require.Equal(t, fails, r.failed, "a budget of %d: %s", budget, &r.text)
	}
	r, _ := record("TestStep", func(t testing.TB) {
		memtest.Peak(t, cache, 10000, func() {
			a := alloc(t, cache, s, memcache.CategoryActivation, "a", 8192)
			free(t, a, alloc(t, cache, s, memcache.CategoryOther, "", 1))
		})
	})
	lines := strings.Split(r.text.String(), "\n")
	require.Equal(t, []string{
		"memtest: the peak is 12.50 KiB, 12800 bytes: 2800 more than the budget of 10000",
		"  bytes  blocks  category         module",
		"   8192       1  activation       a",
		"   4096       1  parameter        w (Linear)",
		"    512       1  other            -",
		"  bytes  blocks  line",
	}, lines[:6])
	require.Regexp(t, `^   8704       2  setup_test.go:\d+ \(memtest_test.alloc\)$`, lines[6])
	require.Equal(t, "   4096       1  before stacks were kept", lines[7], "of the first loop's")
	free(t, weights)
}

func TestPeakOfNothing(t *testing.T) {
	cache, _ := open(t)
	memtest.Peak(t, cache, 0, func() {})
}

// openScopes returns the number of open scopes of the cache.
func openScopes(cache *memcache.Cache) int {
	return reflect.ValueOf(cache).Elem().FieldByName("ledger").FieldByName("openScopes").Len()
}

// TestFunctionEndsTheTest: neither a panic nor FailNow leaves a scope open.
func TestFunctionEndsTheTest(t *testing.T) {
	cache, _ := open(t)
	r, panicked := record("TestStep", func(t testing.TB) { memtest.Peak(t, cache, 0, func() { panic("mine") }) })
	require.Equal(t, "mine", panicked)
	require.Empty(t, r.text.String())
	r, panicked = record("TestStep", func(t testing.TB) { memtest.Peak(t, cache, 0, func() { t.Fatal("mine") }) })
	require.Nil(t, panicked)
	require.Equal(t, "mine\n", r.text.String())
	require.Zero(t, openScopes(cache))
}

func TestMistakes(t *testing.T) {
	cache, _ := open(t)
	for want, f := range map[string]func(t testing.TB){
		"memtest: the cache is nil\n":    func(t testing.TB) { memtest.Peak(t, nil, 0, func() {}) },
		"memtest: the function is nil\n": func(t testing.TB) { memtest.Golden(t, cache, "testdata/x", nil) },
		"\tmemtest: the cache is nil\n":  func(t testing.TB) { memtest.NoLeak(t, nil) },
	} {
		r, panicked := record("TestStep", func(t testing.TB) {
			f(t)
			t.Errorf("it goes on")
		})
		require.Nil(t, panicked)
		require.Equal(t, strings.TrimSpace(want), strings.TrimSpace(r.text.String()))
	}
}

// TestClosedCache: a closed cache is refused, because it has no memory and would meet every budget.
func TestClosedCache(t *testing.T) {
	cache, s := open(t)
	r, _ := record("TestStep", func(t testing.TB) {
		memtest.NoLeak(t, cache)
		alloc(t, cache, s, memcache.CategoryOther, "", 1000)
		_ = cache.Close()
	})
	require.Equal(t, "memtest: the cache was closed before NoLeak could check it: close it in a function of t.Cleanup, set before NoLeak\n", r.text.String())
	r, _ = record("TestStep", func(t testing.TB) { memtest.Peak(t, cache, 1<<30, func() {}) })
	require.Contains(t, r.text.String(), "memtest: the cache is closed")
}

// TestOneCacheInManyTests: the figures are of the whole cache; nothing else is shared.
func TestOneCacheInManyTests(t *testing.T) {
	cache, s := open(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			r, panicked := record("TestStep", func(t testing.TB) {
				memtest.NoLeak(t, cache)
				for range 20 {
					memtest.Peak(t, cache, 8*1024, func() { free(t, alloc(t, cache, s, memcache.CategoryOther, "", 1000)) })
				}
			})
			if panicked != nil || strings.Contains(r.text.String(), "the peak") {
				t.Error(panicked, r.text.String())
			}
		})
	}
	all.Wait()
	require.Zero(t, openScopes(cache))
}

// TestHistoryOfTheProgram: the program's history continues, with stacks.
func TestHistoryOfTheProgram(t *testing.T) {
	cache, s := open(t)
	require.NoError(t, cache.RecordHistory(memcache.HistoryOptions{Entries: 100, Stacks: memcache.StacksAll}))
	free(t, alloc(t, cache, s, memcache.CategoryOther, "", 1000))
	memtest.Peak(t, cache, 1024, func() { free(t, alloc(t, cache, s, memcache.CategoryOther, "", 1000)) })
	entries := cache.History()
	require.Len(t, entries, 7, "a segment, and the alloc, free_requested and free_completed of two blocks")
	for _, e := range entries {
		require.Equal(t, e.Action == memcache.ActionFreeCompleted, e.Stack == nil, e.Action)
	}
}
