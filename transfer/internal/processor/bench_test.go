package processor

import (
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Numbers are those of Go's processors, and goroutines that run at the same time get different
// ones.
func TestNumber(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(3))
	seen := make([]map[int]bool, 8)
	var group sync.WaitGroup
	for i := range seen {
		seen[i] = map[int]bool{}
		group.Go(func() {
			for range 10_000 {
				seen[i][Number()] = true
				runtime.Gosched()
			}
		})
	}
	group.Wait()
	all := map[int]bool{}
	for _, s := range seen {
		for n := range s {
			require.True(t, 0 <= n && n < 3, n)
			all[n] = true
		}
	}
	require.Greater(t, len(all), 1)
}

func BenchmarkNumber(b *testing.B) {
	b.Run("processor", func(b *testing.B) {
		for b.Loop() {
			Number()
		}
	})
	b.Run("sync.Pool", func(b *testing.B) {
		hints := sync.Pool{New: func() any { return new(int) }}
		for b.Loop() {
			hints.Put(hints.Get())
		}
	})
}
