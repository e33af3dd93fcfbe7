package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace/torchsnapshot"
)

// Typical recordings of users: begun after the model was built, in a ring, with empty_cache; each
// is a file of a few lines.

const (
	mib = int64(1 << 20)
	at  = int64(0x7f0000000000)
)

func segment(p, bytes int64, blocks ...string) string {
	return fmt.Sprintf(`{"address":%d,"total_size":%d,"stream":0,"blocks":[%s]}`, p, bytes, strings.Join(blocks, ","))
}

func block(p, bytes, requested int64, state string) string {
	return fmt.Sprintf(`[%d,%d,%d,%q]`, p, bytes, requested, state)
}

func event(action string, p, bytes int64) string {
	return fmt.Sprintf(`[%q,%d,%d,0]`, action, p, bytes)
}

func lateFile(t *testing.T, segments []string, entries ...string) string {
	header := fmt.Sprintf(`{"torch":"2.11.0","conf":"","total_memory":%d,"segments":[%s]}`, int64(80)<<30, strings.Join(segments, ","))
	return write(t, "run.jsonl", header+"\n"+strings.Join(entries, "\n")+"\n")
}

// A model of 1 GiB existed before, and is only in the final segments.
func TestModelBeforeTheRecording(t *testing.T) {
	file := lateFile(t, []string{segment(at, 1024*mib, block(at, 1024*mib, 1024*mib, "active_allocated")), segment(at+1024*mib, 20*mib, block(at+1024*mib, 20*mib, 4*mib, "inactive"))},
		event("alloc", at+1024*mib, 4*mib), event("free_requested", at+1024*mib, 4*mib), event("free_completed", at+1024*mib, 4*mib))
	status, stdout, _ := runs(t, "verify", file)
	require.Equal(t, exitOK, status, stdout)
	require.Contains(t, stdout, "the recording began late: 1 blocks in 2 segments (1044.0 MiB) existed before")
	status, stdout, _ = runs(t, "whatif", "--json", "-c", "", "-c", "expandable_segments:True", file)
	require.Equal(t, exitOK, status)
	for i, o := range objects(t, stdout) {
		require.EqualValues(t, 1028*mib, o["peak_allocated"])
		require.Len(t, o["notes"], 1+i, "under other options the free memory at the start is a guess")
	}
}

// An empty_cache after the recording began released memory whose allocation was not recorded.
func TestEmptyCacheOfEarlierMemory(t *testing.T) {
	held, p := 8192*mib, at
	segments := []string{segment(p, held, block(p, held, held, "active_allocated"))}
	var entries []string
	p += held
	for range 50 {
		entries = append(entries, event("segment_free", p, 20*mib))
		p += 20 * mib
	}
	for range 60 {
		entries = append(entries, event("segment_alloc", p, 20*mib), event("alloc", p, 20*mib))
		segments = append(segments, segment(p, 20*mib, block(p, 20*mib, 20*mib, "active_allocated")))
		p += 20 * mib
	}
	file := lateFile(t, segments, entries...)
	for _, args := range [][]string{{"verify", "--json", file}, {"whatif", "--json", "-c", "", file}} {
		status, stdout, _ := runs(t, args...)
		require.Equal(t, exitOK, status, stdout)
		o := objects(t, stdout)[0]
		require.Zero(t, o["ooms"])
		require.Zero(t, o["retries"])
		require.NotContains(t, stdout, "bytes fit")
		require.EqualValues(t, held+1200*mib, o["peak_reserved"])
	}
}

// One empty_cache between two phases of a program that is recorded from its start: the search does
// not infer a limit from it, and notes the alternatives.
func TestEmptyCacheIsNotALimit(t *testing.T) {
	b := at + 1024*mib
	file := lateFile(t, []string{segment(b, 66*mib, block(b, 66*mib, 65*mib, "active_allocated"))},
		event("segment_alloc", at, 40*mib), event("alloc", at, 40*mib), event("free_requested", at, 40*mib), event("free_completed", at, 40*mib),
		event("segment_free", at, 40*mib), event("segment_alloc", b, 66*mib), event("alloc", b, 65*mib))
	status, stdout, _ := runs(t, "verify", file)
	require.Equal(t, exitOK, status, stdout)
	require.NotContains(t, stdout, "bytes fit")
	status, stdout, _ = runs(t, "whatif", "-c", "", "-c", "roundup_power2_divisions:2", file)
	require.Equal(t, exitOK, status)
	require.Regexp(t, `(?m)^run\.jsonl +roundup_power2_divisions:2 +96\.0 MiB +96\.0 MiB +1\.000 +3 +0 +0 +\d+$`, stdout)
	require.Contains(t, stdout, "run.jsonl: all free segments were released just before 1 requests: read as empty_cache, but it could be retries under a memory limit")
}

// The ring was cut between a free and its completion.
func TestRingCutInAFree(t *testing.T) {
	file := lateFile(t, []string{segment(at, 20*mib, block(at, 20*mib, 0, "inactive"))}, event("free_completed", at, 4*mib))
	status, stdout, _ := runs(t, "verify", file)
	require.Equal(t, exitOK, status, stdout)
	require.Contains(t, stdout, "its first entry completes an earlier free (the oldest entries may be lost: max_entries)")
}

// A failed verification has three lines: the first difference, the number of agreeing entries, and
// the likely reason.
func TestWordsOfAFailure(t *testing.T) {
	file := lateFile(t, []string{segment(at, 20*mib, block(at, 4*mib, 4*mib, "active_allocated"), block(at+4*mib, 16*mib, 0, "inactive"))},
		event("segment_alloc", at, 20*mib), event("alloc", at+4*mib, 4*mib), event("free_requested", at+4*mib, 4*mib), event("free_completed", at+4*mib, 4*mib), event("alloc", at, 4*mib))
	status, stdout, _ := runs(t, "verify", file)
	require.Equal(t, exitDiffers, status)
	require.Regexp(t, `run\.jsonl: \d+ addresses, .* differ; first: entry 1: alloc of 4194304 bytes at 0x7f0000400000: the address is 0x7f0000000000 here
run\.jsonl: 1 of 5 entries agree before that
run\.jsonl: the likely reason: other allocator options: none are recorded\n`, stdout)
}

// Unknown options and unknown actions are skipped with a note.
func TestWhatIsNotKnown(t *testing.T) {
	text := `{"conf":"magic:[1:2,3:4],max_split_size_mb:64,backend:cudaMallocAsync"}` + "\n" + `["teleport",1,2,3]` + "\n" + event("segment_alloc", at, 20*mib) + "\n" + event("alloc", at, 4*mib) + "\n"
	status, stdout, stderr := runs(t, "verify", write(t, "run.jsonl", text))
	require.Equal(t, exitOK, status, stderr)
	for _, note := range []string{`1 entries with the unknown action "teleport" were skipped`, "the recorded option magic:[1:2,3:4] is unknown and ignored", "the recorded option backend:cudaMallocAsync is unknown and ignored"} {
		require.Contains(t, stdout, note)
	}
	status, stdout, stderr = runs(t, "whatif", "-c", "recorded", write(t, "run.jsonl", text))
	require.Equal(t, exitOK, status, stderr)
	require.Contains(t, stdout, "max_split_size_mb:64 ")
	require.Contains(t, stdout, "magic")
}

// whatif tries promising options, and ends with a sentence.
func TestSuggestions(t *testing.T) {
	status, stdout, stderr := runs(t, "whatif", testdata+"tight.jsonl.gz")
	require.Equal(t, exitOK, status, stderr)
	for _, options := range []string{"default", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4", "garbage_collection_threshold:0.8,memory_limit:"} {
		require.Contains(t, stdout, options)
	}
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	require.Regexp(t, `^tight\.jsonl\.gz: \S+ would have reserved (\d+ % less \([\d,]+ → [\d,]+ MiB\)|about as much)( and avoided \d+ of \d+ retries)?$`, lines[len(lines)-1])
}

// Our own snapshots, one of a history that began late and one with EmptyCache.
func TestOwnSnapshots(t *testing.T) {
	for _, late := range []bool{true, false} {
		dev, err := null.New(null.Config{Capacity: 80 << 30})
		require.NoError(t, err)
		c, err := memcache.New(dev, memcache.Config{})
		require.NoError(t, err)
		s, err := dev.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		alloc := func(bytes int64) memcache.Block {
			b, err := c.Alloc(t.Context(), bytes, s)
			require.NoError(t, err)
			return b
		}
		if late {
			alloc(1024 * mib)
		}
		require.NoError(t, c.RecordHistory(memcache.HistoryOptions{Entries: 1000}))
		require.NoError(t, alloc(40*mib).Free())
		require.NoError(t, c.EmptyCache(t.Context()))
		alloc(65 * mib)
		var file bytes.Buffer
		require.NoError(t, torchsnapshot.Write(&file, torchsnapshot.State{Snapshot: c.Snapshot(), Config: c.Config()}))
		name := write(t, "run.pickle", file.String())
		status, stdout, _ := runs(t, "verify", "--json", name)
		require.Equal(t, exitOK, status, stdout)
		require.EqualValues(t, c.MaxMemoryAllocated(), objects(t, stdout)[0]["peak_allocated"])
		_, stdout, _ = runs(t, "whatif", "--json", "-c", "recorded", "-c", "roundup_power2_divisions:2", name)
		list := objects(t, stdout)
		require.EqualValues(t, c.MaxMemoryReserved(), list[0]["peak_reserved"])
		want := 96 * mib
		if late {
			want += 1024 * mib
		}
		require.EqualValues(t, want, list[1]["peak_allocated"])
		require.Zero(t, list[1]["ooms"])
	}
}
