package peaks

import (
	"fmt"
	"sync"
	"testing"
)

// Each goroutine adds and subtracts, with so many at a time outstanding.
func BenchmarkAdd(b *testing.B) {
	for _, goroutines := range []int{1, 2, 16} {
		for _, depth := range []int{1, 16} {
			b.Run(fmt.Sprintf("goroutines=%d/depth=%d", goroutines, depth), func(b *testing.B) {
				l := New(NoLimit, NoLimit, 1<<40)
				shards := make([]*Shard, goroutines)
				for i := range shards {
					shards[i] = l.Join()
				}
				b.ReportAllocs()
				b.ResetTimer()
				var group sync.WaitGroup
				for _, s := range shards {
					group.Go(func() {
						for range b.N/goroutines/depth + 1 {
							for range depth {
								s.Lock()
								s.Add(Change{0, 1}, Change{1, 64}, Change{2, -64})
								s.Unlock()
							}
							for range depth {
								s.Lock()
								s.Add(Change{0, -1}, Change{1, -64}, Change{2, 64})
								s.Unlock()
							}
						}
					})
				}
				group.Wait()
				b.ReportMetric(float64(b.N)/float64(b.Elapsed().Microseconds()+1), "pairs/us")
			})
		}
	}
}
