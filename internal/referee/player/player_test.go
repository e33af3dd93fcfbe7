package main

import (
	"bytes"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/race"
)

// ids are numbers that are counted in a process.
var ids = regexp.MustCompile(`stream \d+`)

// TestPlayersRepeat: two runs of one version print the same, and other seeds something else: what a referee finds is of the versions.
func TestPlayersRepeat(t *testing.T) {
	calls := map[string]int64{"memcache": 12 * life, "memcache-exact": life, "transfer": 2 * life}
	for name, play := range parts {
		t.Run(name, func(t *testing.T) {
			n := calls[name]
			if testing.Short() || race.Enabled {
				n = life
			}
			print := func(seed uint64) []byte {
				var out bytes.Buffer
				require.NoError(t, play(&out, n, seed))
				return ids.ReplaceAll(out.Bytes(), nil)
			}
			first := print(1)
			require.True(t, bytes.Equal(first, print(1)))
			require.False(t, bytes.Equal(first, print(2)))
			require.Greater(t, bytes.Count(first, []byte("\n")), int(n))
		})
	}
}

// TestPlayersMeetEverything that the versions are compared in.
func TestPlayersMeetEverything(t *testing.T) {
	want := map[string][]string{
		"memcache": {`^ alloc 0x`, `^ free 0x`, `^ map 0x`, `^ unmap 0x`, `^ reserve 0x`, `refused`, `out of memory`, `^pressure|^ pressure`, `^ reclaimed`, `^release pool`, `^close stream`,
			`^ end empty_cache`, `^ end relabel`, `^end scope\d+: `, `^ segment_`, `^close: memcache: Close: blocks that were never freed`},
		"transfer": {`^ on \d: h2d b`, `^ on \d: d2h b`, `^ on \d: d2d b`, `^ on \d: copy2d`, `^ on \d: h2d of a batch`, `^ on \d: d2h of a batch`, `^ on \d: memset`, `over the limit`, `in flight`, `AllocPinned`,
			`released`, `^hold`, `^register \d+: done`, `^download`, `^close: transfer: Close`},
	}
	want["memcache-exact"] = want["memcache"]
	calls := map[string]int64{"memcache": 51 * life, "memcache-exact": 51 * life, "transfer": 7 * life}
	for name, play := range parts {
		t.Run(name, func(t *testing.T) {
			if testing.Short() || race.Enabled {
				t.Skip("it takes many calls")
			}
			var out bytes.Buffer
			require.NoError(t, play(&out, calls[name], 3))
			for _, w := range want[name] {
				require.True(t, regexp.MustCompile("(?m)"+w).Match(out.Bytes()), w)
			}
		})
	}
}
