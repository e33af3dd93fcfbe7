package record

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/memcache"
)

// TestCacheClosedWhileFreesPend: Close of the cache waits for them, and in a replay of the
// recording they are complete at its end.
func TestCacheClosedWhileFreesPend(t *testing.T) {
	c, s := small(t, memcache.Config{})
	other, err := c.Device().(*null.Device).NewStreamWithID(8)
	require.NoError(t, err)
	var file bytes.Buffer
	r, err := Start(&file, c, Options{})
	require.NoError(t, err)
	a, kept := alloc(t, c, 100, s), alloc(t, c, 100, s)
	release, err := other.Hold()
	require.NoError(t, err)
	require.NoError(t, a.RecordStream(other))
	require.NoError(t, a.Free())
	release()
	require.Error(t, c.Close(), "a leak")
	require.NoError(t, r.Close())
	require.Empty(t, verifies(t, file.Bytes()))
	rec := read(t, file.Bytes())
	require.EqualValues(t, "free_completed", rec.Entries[len(rec.Entries)-1].Action.String())
	require.Equal(t, kept.Ptr(), rec.Segments[0].Blocks[1].Address)
}
