package memcache_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
)

// BenchmarkReuseAcrossStreams measures when reuse across streams pays: the time of an iteration,
// the peak of the reserved bytes, and how often the host waited. In "hand-over" one stream makes
// blocks that a slower one reads, and runs ahead of it. In "turns" sixteen streams, such as those
// of requests to a service, take turns at blocks that each frees at once. CISTERN_TEST_DEVICE
// selects the device.
func BenchmarkReuseAcrossStreams(b *testing.B) {
	const bytes = 16 << 20
	for _, work := range []struct {
		name    string
		streams int
		step    func(b *testing.B, c *memcache.Cache, s []device.Stream, i int) error
	}{
		{"hand-over", 2, func(b *testing.B, c *memcache.Cache, s []device.Stream, _ int) error {
			x, err := c.Alloc(b.Context(), bytes, s[0])
			require.NoError(b, err)
			out, err := c.Alloc(b.Context(), bytes, s[1])
			require.NoError(b, err)
			made := newEvent(s[0].Device())
			err = errors.Join(s[0].Memset(x.Ptr(), 1, bytes), s[0].Record(made), s[1].Wait(made), made.Close())
			for range 4 {
				err = errors.Join(err, s[1].CopyD2D(out.Ptr(), x.Ptr(), bytes))
			}
			return errors.Join(err, x.RecordStream(s[1]), x.Free(), out.Free())
		}},
		{"turns", 16, func(b *testing.B, c *memcache.Cache, s []device.Stream, i int) error {
			on := s[i%len(s)]
			x, err := c.Alloc(b.Context(), bytes, on)
			require.NoError(b, err)
			return errors.Join(on.Memset(x.Ptr(), 1, bytes), x.Free())
		}},
	} {
		for _, mode := range []struct {
			name   string
			config memcache.Config
		}{
			{"never", memcache.Config{}},
			{"never, limit", memcache.Config{MemoryLimit: 6 * bytes}},
			{"when full, limit", memcache.Config{MemoryLimit: 6 * bytes, ReuseAcrossStreams: memcache.ReuseWhenFull}},
			{"before growth", memcache.Config{ReuseAcrossStreams: memcache.ReuseBeforeGrowth}},
		} {
			b.Run(work.name+"/"+mode.name, func(b *testing.B) {
				dev := cisterntest.Open(b, 4<<30)
				c, err := memcache.New(dev, mode.config)
				require.NoError(b, err)
				streams := make([]device.Stream, work.streams)
				for i := range streams {
					streams[i] = cisterntest.Stream(b, dev)
				}
				b.ResetTimer()
				for i := range b.N {
					require.NoError(b, work.step(b, c, streams, i))
				}
				for _, s := range streams { // what was queued is a part of the work
					require.NoError(b, s.Synchronize(b.Context()))
				}
				b.StopTimer()
				b.ReportMetric(float64(c.MaxMemoryReserved())/(1<<20), "MiB-reserved")
				b.ReportMetric(float64(c.Stats().NumSyncAllStreams)/float64(b.N), "flushes/op")
				b.ReportMetric(float64(c.Stats().NumStreamReuses)/float64(b.N), "reuses/op")
				require.NoError(b, errors.Join(c.Close(), dev.Close()))
			})
		}
	}
}
