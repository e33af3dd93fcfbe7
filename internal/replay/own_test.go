package replay

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/recording"
)

// jumbled is a recording of ours whose calls overlapped: one missed while the other freed what would have served it.
const jumbled = `{"format":"cistern recording 1","conf":"","total_memory":1073741824,"limit":null}
["miss",0,512,7]
["segment_alloc",2097152,2097152,7]
["alloc",2097152,100,7,0,-1,512,-1,0,1,1]
["alloc",2097664,1000,7,0,-1,1024,-1,0,2]
["miss",0,1048576,7]
["free",2097152,100,7]
["segment_alloc",8388608,2097152,7]
["alloc",8388608,1048576,7,0,-1,1048576,-1,0,3,1]
["free_requested",2097664,1000,7]
["flush",0,0,0]
["free_completed",2097664,1000,7]
["segment_free",2097152,2097152,7]
["empty_cache",0,0,0]
["oom",5,1536,7]
{"stats":{"allocation.all.current":1,"allocation.all.peak":2,"allocated_bytes.all.peak":1049600,"active_bytes.all.current":1048576,"active.all.freed":2,"requested_bytes.all.allocated":1049676,"reserved_bytes.all.peak":4194304,"segment.all.freed":1,"num_ooms":1,"num_sync_all_streams":1},"segments":[{"address":8388608,"total_size":2097152,"stream":7,"blocks":[[8388608,1048576,1048576,"active_allocated"],[9437184,1048576,0,"inactive"]]}]}
`

func own(t *testing.T, text string) (*Verification, error) {
	t.Helper()
	list, err := recording.Read(strings.NewReader(text), "own", recording.Options{})
	require.NoError(t, err)
	p, err := recording.NewProgram(list[0])
	if err != nil {
		return nil, err
	}
	return Verify(p)
}

// TestStreamsOfLaterRequests: a stream that the cache found closed stays open while a request of this
// step or of a later one is on it.
func TestStreamsOfLaterRequests(t *testing.T) {
	dev, err := null.New(null.Config{Capacity: 1 << 20})
	require.NoError(t, err)
	s, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	m := &machine{p: &recording.Program{Streams: []uint64{7}}, byIndex: []device.Stream{s}, lastUse: []int{5}}
	inside := []recording.Entry{{Action: recording.StreamClosed, Stream: 7}}
	for i, closed := range []bool{4: false, 5: false, 6: true} {
		m.closeStreams(i, inside)
		require.Equal(t, closed, s.Closed(), "step %d", i)
	}
	require.NoError(t, dev.Close())
}

// TestBooks: if the calls cannot be repeated, any change of the entries, the statistics or the
// blocks is still found.
func TestBooks(t *testing.T) {
	v, err := own(t, jumbled)
	require.NoError(t, err)
	require.Zero(t, v.Mismatches(), v.First)
	require.Len(t, v.Notes, 1)
	require.Contains(t, v.Notes[0], "calls of several goroutines overlap")
	require.Equal(t, 4, v.Allocs)
	require.EqualValues(t, 1049600, v.PeakAllocated)
	require.EqualValues(t, 1, v.OOMs)
	for _, c := range []struct{ old, new, want string }{
		{`["alloc",2097664,1000,7,0,-1,1024`, `["alloc",2097408,1000,7,0,-1,1024`, "nothing is allocated there"},
		{`["segment_alloc",8388608,2097152,7]`, `["segment_alloc",4194304,2097152,7]`, "there is no memory at 0x800000"},
		{`["segment_alloc",8388608,2097152,7]`, `["segment_alloc",3145728,7340032,7]`, "there is memory at 0x200000 already"},
		{`["segment_alloc",8388608,2097152,7]`, `["segment_alloc",8388608,1048064,7]`, "there is no memory at 0x8ffe00"},
		{`["alloc",2097152,100,7,0,-1,512`, `["alloc",2097152,100,7,0,-1,1024`, "the block of 1024 bytes at 0x200000 is in use"},
		{`["alloc",2097152,100,7,0,-1,512,-1,0,1,1]`, `["alloc",2097152,100,7,0]`, "does not say how large"},
		{`["segment_free",2097152,2097152,7]`, `["segment_free",2097152,1048576,7]`, "the segment there has 2097152 bytes"},
		{`["segment_free",2097152,2097152,7]`, `["segment_free",8388608,2097152,7]`, "a block of 1048576 bytes at 0x800000 is in use"},
		{`["segment_free",2097152,2097152,7]`, `["segment_unmap",2097152,2097152,7]`, "there is no such memory"},
		{`["free_completed",2097664,1000,7]` + "\n", ``, "a block of 1024 bytes at 0x200200 is in use"},
		{`["segment_free",2097152,2097152,7]` + "\n", ``, "segment.all.freed is 0 by the entries, and 1 at the end"},
		{`"total_size":2097152`, `"total_size":2097664`, "and at the end it is"},
		{`["flush",0,0,0]` + "\n", ``, "num_sync_all_streams is 0 by the entries, and 1 at the end"},
		{`["oom",5,1536,7]`, `["reset_totals",0,0,0]`, "is 0 by the entries"},
		{`"active.all.freed":2`, `"active.all.freed":3`, "active.all.freed is 2 by the entries, and 3 at the end"},
		{`1048576,"active_allocated"`, `1048576,"active_pending_free"`, "block 0 in use is"},
		{`[[8388608,1048576,1048576,"active_allocated"],`, `[`, "block 0 in use is"},
	} {
		require.Equal(t, 1, strings.Count(jumbled, c.old), c.old)
		v, err := own(t, strings.Replace(jumbled, c.old, c.new, 1))
		if err != nil {
			require.ErrorContains(t, err, c.want)
			continue
		}
		require.Contains(t, v.First, c.want, c.old)
		require.Positive(t, v.Mismatches())
	}
}

// TestWhatOverlaps: the reason why a recording's calls cannot be repeated is reported.
func TestWhatOverlaps(t *testing.T) {
	serial := `{"format":"cistern recording 1","conf":"exact:True","total_memory":1073741824,"limit":null}
["miss",0,512,7]
["segment_alloc",2097152,2097152,7]
["alloc",2097152,100,7,0,-1,512,-1,0,1,1]
["free",2097152,100,7]
`
	v, err := own(t, serial)
	require.NoError(t, err)
	require.Zero(t, v.Mismatches(), v.First)
	require.NotContains(t, strings.Join(v.Notes, "; "), "books")
	v, err = own(t, strings.Replace(serial, `["alloc",2097152,100,7,0,-1,512`, `["alloc",2097664,100,7,0,-1,512`, 1)[:strings.Index(serial, `["free"`)])
	require.NoError(t, err)
	require.Contains(t, v.First, "the address is 0x200000 here")
	for entry, want := range map[string]string{
		`["failed",0,512,7]`: "a request failed for another reason",
		`["miss",0,512,7]` + "\n" + `["set_limit",0,512,0]`:                 "calls of several goroutines overlap",
		`["alloc",2097664,100,7,0,-1,512,-1,0,2,2]`:                         "private pools",
		`["miss",0,512,7]` + "\n" + `["reset_peaks",0,0,0]`:                 "calls of several goroutines overlap",
		`["flush",0,0,7]` + "\n" + `["alloc",2097664,1,7,0,-1,512]`:         "calls of several goroutines overlap",
		`["stream_closed",0,0,7]` + "\n" + `["oom",0,512,7]`:                "",
		`["stream_closed",0,0,7]` + "\n" + `["alloc",2097664,1,7,0,-1,512]`: "calls of several goroutines overlap",
	} {
		v, err := own(t, strings.Replace(serial, `["free"`, entry+"\n"+`["free"`, 1))
		require.NoError(t, err)
		require.Contains(t, strings.Join(v.Notes, "; "), want, entry)
	}
	// Calls that overlapped in time, and an address that no order of calls explains: the books agree.
	text := strings.Replace(serial, `["miss"`, `["overlap",0,0,0]`+"\n"+`["miss"`, 1)
	text = strings.NewReplacer(`["alloc",2097152`, `["alloc",2097664`, `["free",2097152`, `["free",2097664`).Replace(text)
	v, err = own(t, text)
	require.NoError(t, err)
	require.Zero(t, v.Mismatches(), v.First)
	require.Contains(t, strings.Join(v.Notes, "; "), "the first that made a difference: entry")
	// A difference before the overlap has no such excuse.
	text = strings.Replace(text, `["overlap",0,0,0]`+"\n", "", 1) + `["overlap",0,0,0]` + "\n"
	v, err = own(t, text)
	require.NoError(t, err)
	require.Contains(t, v.First, "the address is 0x200000 here")
	require.NotContains(t, strings.Join(v.Notes, "; "), "books")
}

// TestBooksAlone: unknown figures of calls that were not repeated are not reported.
func TestBooksAlone(t *testing.T) {
	v, err := own(t, jumbled)
	require.NoError(t, err)
	require.EqualValues(t, 3, v.DriverCalls)
	require.EqualValues(t, -1, v.Retries)
	require.Zero(t, v.Elapsed)
	v, err = own(t, strings.Replace(jumbled, `{"stats":{`, `{"stats":{"num_alloc_retries":2,`, 1))
	require.NoError(t, err)
	require.EqualValues(t, 2, v.Retries)
}

// TestBooksJoin: mapped memory is one stretch, however it was mapped, so that an entry reads only
// its own stretch. A block may span it, but in one segment.
func TestBooksJoin(t *testing.T) {
	b, err := checkBooks(&recording.Program{Recording: &recording.Recording{}})
	require.NoError(t, err)
	enter := func(a recording.Action, addr, size int64) string {
		return b.enter(&recording.Entry{Action: a, Addr: device.Ptr(addr), Size: size, Bytes: size})
	}
	const granule = 2 << 20
	for _, i := range rand.Perm(3000) {
		require.Empty(t, enter(recording.SegmentMap, int64(1+i)*granule, granule))
	}
	require.Len(t, b.memory, 1)
	require.Empty(t, enter(recording.Alloc, granule+512, 5*granule))
	require.Empty(t, enter(recording.SegmentUnmap, 100*granule, 10*granule))
	require.Len(t, b.memory, 2)
	require.Contains(t, enter(recording.SegmentUnmap, 6*granule, granule), "is in use")
	require.Contains(t, enter(recording.SegmentUnmap, 99*granule, 2*granule), "there is no such memory at 0xc800000")
	require.Contains(t, enter(recording.Alloc, 99*granule, 2*granule), "there is no memory at 0xc800000")
	require.Empty(t, enter(recording.Alloc, 120*granule, granule))
	require.Empty(t, enter(recording.SegmentMap, 100*granule, 10*granule))
	require.Len(t, b.memory, 1)
	require.Len(t, b.memory[0].blocks, 2)
	require.Contains(t, enter(recording.Alloc, 119*granule, 2*granule), "is in use")
	require.Empty(t, enter(recording.SegmentAlloc, 3001*granule, granule))
	require.Contains(t, enter(recording.Alloc, 3000*granule, 2*granule), "it ends after its segment, which ends at 0x177200000")
}

// TestOptionsFor: options are as exact as the recording with which they are compared, unless they
// set exact.
func TestOptionsFor(t *testing.T) {
	for _, c := range []struct {
		conf, options, label string
		exact                bool
	}{
		{"", "", "exact:False", false},
		{"", "expandable_segments:True", "exact:False,expandable_segments:True", false},
		{"", "exact:True", "exact:True", true},
		{"exact:True", "", "exact:True", true},
		{"max_split_size_mb:30,exact:True", "max_split_size_mb:30", "exact:True,max_split_size_mb:30", true},
		{"exact:True", "no_caching:True,exact:False", "no_caching:True,exact:False", false},
	} {
		p := &recording.Program{Recording: &recording.Recording{Own: true, Conf: c.conf}}
		config, label, err := OptionsFor(p, c.options)
		require.NoError(t, err)
		require.Equal(t, c.exact, config.Exact, "%+v", c)
		require.Equal(t, c.label, label)
		own, label, err := RecordedOptions(p)
		require.NoError(t, err)
		require.Equal(t, strings.Contains(c.conf, "exact:True"), own.Exact)
		require.Equal(t, own.Exact, strings.Contains(label, "exact:True"))
		p.Own = false
		config, label, err = OptionsFor(p, c.options)
		require.NoError(t, err)
		require.Equal(t, !strings.Contains(c.options, "exact:False"), config.Exact)
		require.Equal(t, c.options, label)
	}
	_, _, err := OptionsFor(&recording.Program{Recording: &recording.Recording{Own: true}}, "expandable_segments:Maybe")
	require.ErrorContains(t, err, "expandable_segments")
	_, _, err = RecordedOptions(&recording.Program{Recording: &recording.Recording{Own: true, Conf: "x:y"}})
	require.ErrorContains(t, err, "the recorded options")
}

// TestBooksReset: after a reset the books count like new ones, except for blocks in use.
func TestBooksReset(t *testing.T) {
	fresh := func() *books {
		b, err := checkBooks(&recording.Program{Recording: &recording.Recording{}})
		require.NoError(t, err)
		return b
	}
	some := func(b *books) {
		for _, e := range []recording.Entry{
			{Action: recording.SegmentAlloc, Addr: 4096, Size: 8192}, {Action: recording.Alloc, Addr: 4096, Size: 500, Bytes: 512},
			{Action: recording.OOM, Size: 1 << 40}, {Action: recording.Flush}, {Action: recording.FreeRequested, Addr: 4096, Size: 500},
			{Action: recording.FreeCompleted, Addr: 4096, Size: 500}, {Action: recording.SegmentFree, Addr: 4096, Size: 8192},
		} {
			require.Empty(t, b.enter(&e))
		}
	}
	once, again := fresh(), fresh()
	some(once)
	for name, g := range once.gauges {
		require.Positive(t, g.allocated, name)
		require.Equal(t, g.allocated, g.freed, name)
		require.Equal(t, g.allocated, g.peak, name)
	}
	require.Equal(t, map[string]int64{"driver calls": 2, "num_ooms": 1, "num_sync_all_streams": 1}, once.counts)
	some(again)
	require.Empty(t, again.enter(&recording.Entry{Action: recording.ResetTotals}))
	require.Equal(t, once.gauges["allocated_bytes"].peak, again.gauges["allocated_bytes"].peak, "it is no total")
	require.Empty(t, again.enter(&recording.Entry{Action: recording.ResetPeaks}))
	for name, g := range again.gauges {
		require.Zero(t, *g, name)
	}
	some(again)
	require.Equal(t, once.counts, again.counts)
	require.Equal(t, once.gauges, again.gauges)
}

// TestBooksAtTheEnd: a block at the end is in use or pending, according to the entries.
func TestBooksAtTheEnd(t *testing.T) {
	for last, want := range map[recording.Action]string{recording.Alloc: "active_allocated", recording.FreeRequested: "active_pending_free", recording.FreeCompleted: "inactive"} {
		entries := []recording.Entry{{Action: recording.SegmentAlloc, Addr: 4096, Size: 8192}, {Action: recording.Alloc, Addr: 4096, Size: 500, Bytes: 512}}
		for _, a := range []recording.Action{recording.FreeRequested, recording.FreeCompleted} {
			if last != recording.Alloc && (a == last || a == recording.FreeRequested) {
				entries = append(entries, recording.Entry{Action: a, Addr: 4096, Size: 500})
			}
		}
		for _, state := range []string{"active_allocated", "active_pending_free", "inactive"} {
			segments := []recording.Segment{{Address: 4096, Size: 8192, Blocks: []recording.Block{{Address: 4096, Size: 512, Requested: 500, State: state}}}}
			b, err := checkBooks(&recording.Program{Recording: &recording.Recording{Entries: entries, Segments: segments}})
			require.NoError(t, err)
			require.Zero(t, b.calls, b.first)
			require.Equal(t, state != want, b.outcome.blocks > 0, "%v: %s", last, state)
		}
	}
}
