package memtest_test

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/memcache/memtest"
)

func TestReport(t *testing.T) {
	before := flag.Lookup("test.benchtime").Value.String()
	require.NoError(t, flag.Set("test.benchtime", "20x"))
	defer func() { require.NoError(t, flag.Set("test.benchtime", before)) }()
	cache, s := open(t)
	free(t, alloc(t, cache, s, memcache.CategoryOther, "", 64<<20)) // before
	require.NoError(t, cache.EmptyCache(t.Context()))
	for _, loop := range []func(b *testing.B, f func()){
		func(b *testing.B, f func()) {
			for range b.N {
				f()
			}
		},
		func(b *testing.B, f func()) {
			for b.Loop() {
				f()
			}
		},
	} {
		r := testing.Benchmark(func(b *testing.B) {
			require.NoError(b, cache.EmptyCache(b.Context()))
			memtest.Report(b, cache)
			loop(b, func() {
				x := alloc(b, cache, s, memcache.CategoryOther, "", 3000)
				free(b, x, alloc(b, cache, s, memcache.CategoryOther, "", 1000))
			})
		})
		require.Equal(t, map[string]float64{"peak-B": 4096, "reserved-B": 2 << 20, "blocks/op": 2, "driver-allocs/op": 1 / float64(r.N)}, r.Extra)
		require.Zero(t, openScopes(cache))
	}
	r := testing.Benchmark(func(b *testing.B) {
		memtest.Report(b, nil)
		t.Error("it goes on")
	})
	require.Zero(t, r)
}
