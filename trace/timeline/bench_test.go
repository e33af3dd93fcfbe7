package timeline

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/memcache"
)

// BenchmarkAllocFree is an allocation and its free without an observer, with the timeline off, on,
// and watching the cache, too.
func BenchmarkAllocFree(b *testing.B) {
	for _, name := range []string{"none", "off", "on", "watched"} {
		b.Run(name, func(b *testing.B) {
			dev, err := null.New(null.Config{Capacity: 1 << 30})
			require.NoError(b, err)
			tl, err := New(io.Discard)
			require.NoError(b, err)
			var config memcache.Config
			m := tl.Memory()
			if name != "none" {
				config.Observer = m
			}
			tl.SetEnabled(name == "on" || name == "watched")
			c, err := memcache.New(dev, config)
			require.NoError(b, err)
			if name == "watched" {
				m.Watch(c)
			}
			s, err := dev.NewStream(device.StreamOptions{})
			require.NoError(b, err)
			for b.Loop() {
				block, err := c.Alloc(b.Context(), 4096, s)
				if err == nil {
					err = block.Free()
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, tl.Close())
		})
	}
}
