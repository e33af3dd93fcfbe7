package memcache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkBesidePending allocates and frees while blocks of n other streams wait for events of n
// more streams.
func BenchmarkBesidePending(b *testing.B) {
	for _, n := range []uint64{0, 1, 16} {
		b.Run(fmt.Sprintf("streams=%d", n), func(b *testing.B) {
			c, dev := newCache(b, Config{})
			s, ctx := dev.stream(1), context.Background()
			for id := range n {
				user := dev.stream(100 + id)
				user.busy = true
				defer user.finish()
				block := mustAlloc(b, c, 512, dev.stream(2+id))
				require.NoError(b, errors.Join(block.RecordStream(user), block.Free()))
			}
			b.ReportAllocs()
			for b.Loop() {
				block, err := c.Alloc(ctx, 512, s)
				if err != nil {
					b.Fatal(err)
				}
				_ = block.Free()
			}
		})
	}
}

// BenchmarkBesideSnapshot allocates and frees while another goroutine takes snapshots with 2^20
// history entries in a loop. It reports the slowest of a thousand pairs, and the slowest of all.
func BenchmarkBesideSnapshot(b *testing.B) {
	const entries = 1 << 20
	c, dev := newCache(b, Config{})
	s, ctx := dev.stream(1), context.Background()
	require.NoError(b, c.RecordHistory(HistoryOptions{Entries: entries}))
	pair := func() {
		block, err := c.Alloc(ctx, 512, s)
		if err != nil {
			b.Fatal(err)
		}
		_ = block.Free()
	}
	for range entries {
		pair()
	}
	done, stop := make(chan int), make(chan struct{})
	go func() {
		taken := 0
		for {
			select {
			case <-stop:
				done <- taken
				return
			default:
				if n := len(c.Snapshot().History); n == 0 {
					b.Error("no history")
				}
				taken++
			}
		}
	}()
	took := make([]time.Duration, 0, 1<<20)
	for b.Loop() {
		at := time.Now()
		pair()
		took = append(took, time.Since(at))
	}
	close(stop)
	taken := <-done
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*999/1000].Nanoseconds()), "p99.9-ns")
	b.ReportMetric(float64(took[len(took)-1].Nanoseconds()), "max-ns")
	b.ReportMetric(float64(taken), "snapshots")
}
