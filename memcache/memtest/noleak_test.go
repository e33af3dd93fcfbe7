package memtest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/memcache/memtest"
)

func TestNoLeak(t *testing.T) {
	cache, s := open(t)
	kept := []memcache.Block{alloc(t, cache, s, memcache.CategoryParameter, "w", 4000)}
	reused := alloc(t, cache, s, memcache.CategoryParameter, "w", 4000)
	at := reused.Ptr()
	r, _ := record("TestStep", func(t testing.TB) {
		memtest.NoLeak(t, cache)
		later := alloc(t, cache, s, memcache.CategoryActivation, "a", 1000)
		t.Cleanup(func() { free(t, later) })
		kept = append(kept, alloc(t, cache, s, memcache.CategoryWorkspace, "", 1000))
	})
	require.False(t, r.failed, &r.text)
	var leaked []memcache.Block
	r, _ = record("TestStep", func(t testing.TB) {
		memtest.NoLeak(t, cache)
		free(t, reused)
		leaked = append(leaked, alloc(t, cache, s, memcache.CategoryActivation, "a", 4000), alloc(t, cache, s, memcache.CategoryActivation, "a", 512))
	})
	require.Equal(t, at, leaked[0].Ptr(), "a block at an address that was another's before")
	require.Regexp(t, `^memtest: 4.50 KiB that the test has allocated are not freed
  bytes  blocks  category         module
   4608       2  activation       a
  bytes  blocks  line
   4608       2  setup_test.go:\d+ \(memtest_test.alloc\)
\n$`, r.text.String())
	free(t, append(leaked, kept...)...)
	stream, err := cache.StreamHistory(memcache.HistoryOptions{})
	require.NoError(t, err, "the history has no stream")
	stream.Close()
}

// TestPendingBlocksAreNoLeak: a freed block that waits for a stream is not reported.
func TestPendingBlocksAreNoLeak(t *testing.T) {
	cache, s := open(t)
	other, err := cache.Device().NewStream(device.StreamOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	release := cisterntest.Hold(t, other)
	r, _ := record("TestStep", func(t testing.TB) {
		memtest.NoLeak(t, cache)
		b := alloc(t, cache, s, memcache.CategoryOther, "", 1000)
		require.NoError(t, b.RecordStream(other))
		free(t, b)
		require.Positive(t, cache.Stats().ActiveBytes.All.Current)
	})
	release()
	require.False(t, r.failed, &r.text)
}
