package memcache

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// A recording contains the operations of PyTorch 2.11's allocator for one workload.
type recording struct {
	Conf        string           `json:"conf"`
	TotalMemory int64            `json:"total_memory"`
	Limit       *int64           `json:"limit"`
	Stats       map[string]int64 `json:"stats"`
	Segments    []struct {
		Address int64   `json:"address"`
		Size    int64   `json:"total_size"`
		Stream  uint64  `json:"stream"`
		Blocks  [][]any `json:"blocks"`
	} `json:"segments"`
	entries []entry
}

type entry struct {
	action        string
	address, size int64
	stream        uint64
}

func (e entry) releases() bool { return e.action == "segment_free" || e.action == "segment_unmap" }

// readings caches the recordings by file. Two tests need all of them, and none changes one.
var readings sync.Map

func readRecording(t testing.TB, file string) *recording {
	t.Helper()
	parse := sync.OnceValues(func() (*recording, error) { return parseRecording(file) })
	read, _ := readings.LoadOrStore(file, parse)
	r, err := read.(func() (*recording, error))()
	require.NoError(t, err, file)
	return r
}

func parseRecording(file string) (*recording, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 64<<20)
	if !lines.Scan() {
		return nil, errors.Join(lines.Err(), io.ErrUnexpectedEOF)
	}
	var r recording
	if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
		return nil, err
	}
	for lines.Scan() {
		e, err := parseEntry(lines.Text())
		if err != nil {
			return nil, err
		}
		r.entries = append(r.entries, e)
	}
	return &r, lines.Err()
}

// parseEntry reads a line such as ["alloc",4096,512,7]. There are hundreds of thousands, and
// encoding/json takes several times as long.
func parseEntry(line string) (e entry, err error) {
	fields := strings.Split(strings.Trim(line, "[]"), ",")
	if len(fields) < 4 {
		return entry{}, fmt.Errorf("an entry of %d fields: %s", len(fields), line)
	}
	var err1, err2, err3 error
	e.action = strings.Clone(strings.Trim(fields[0], `"`)) // or else the whole line is kept
	e.address, err1 = strconv.ParseInt(fields[1], 10, 64)
	e.size, err2 = strconv.ParseInt(fields[2], 10, 64)
	e.stream, err3 = strconv.ParseUint(fields[3], 10, 64)
	return e, errors.Join(err1, err2, err3)
}

// recordings returns the files of PyTorch's recordings. A short run leaves out the longest
// programs: others with the same options remain, and the nightly run includes all.
func recordings(t testing.TB) (files []string) {
	t.Helper()
	all, err := filepath.Glob("testdata/recordings/*.jsonl.gz")
	require.NoError(t, err)
	for _, file := range all {
		switch strings.TrimSuffix(filepath.Base(file), ".jsonl.gz") {
		case "generate", "gpt2", "gpt2.expandable", "segmentation", "segmentation.maxsplit64",
			"vit_eval":
			if testing.Short() {
				continue
			}
		}
		files = append(files, file)
	}
	require.NotEmpty(t, files)
	return files
}

// TestRecordings replays the calls of PyTorch's programs, and requires every address, every driver
// call in order, all statistics and the final blocks to be those of PyTorch.
func TestRecordings(t *testing.T) {
	for _, file := range recordings(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".jsonl.gz"), func(t *testing.T) {
			t.Parallel()
			if info, err := os.Stat(file); race.Enabled && err == nil && info.Size() > 32<<10 {
				t.Skip("one goroutine, and long")
			}
			newReplay(t, readRecording(t, file)).run()
		})
	}
}

// bases returns the addresses of the expandable segments, in the order of their creation: a segment
// begins where memory is mapped outside of the existing ones.
func (r *recording) bases() (bases []device.Ptr) {
	mapped := map[int64]int64{} // by base
	of := func(address int64) (int64, bool) {
		for base := range mapped {
			if address >= base && address < base+r.TotalMemory*9/8 {
				return base, true
			}
		}
		return 0, false
	}
	for i, e := range r.entries {
		switch e.action {
		case "segment_map":
			base, ok := of(e.address)
			if !ok {
				base = e.address
				bases = append(bases, device.Ptr(base))
			}
			mapped[base] += e.size
		case "segment_unmap":
			base, _ := of(e.address)
			mapped[base] -= e.size
			if i+1 < len(r.entries) && r.entries[i+1].action == "segment_unmap" {
				continue
			}
			for base, bytes := range mapped {
				if bytes == 0 {
					delete(mapped, base)
				}
			}
		}
	}
	return bases
}

type replay struct {
	t       *testing.T
	r       *recording
	dev     *scripted
	cache   *Cache
	streams map[uint64]*scriptedStream
	blocks  map[int64]Block
	uses    map[int64]*scriptedStream // of a pending block: a stream of its own
	next    uint64
}

func newReplay(t *testing.T, r *recording) *replay {
	dev := newScripted(r.TotalMemory)
	for _, e := range r.entries {
		if e.action == "segment_alloc" {
			dev.next = append(dev.next, device.Ptr(e.address))
		}
	}
	dev.bases = r.bases()
	config, err := ParseConfig(r.Conf)
	require.NoError(t, err)
	config.Exact = true
	if r.Limit != nil {
		config.MemoryLimit = *r.Limit
	}
	cache, err := New(dev, config)
	require.NoError(t, err)
	require.NoError(t, cache.RecordHistory(HistoryOptions{Entries: len(r.entries)}))
	return &replay{
		t: t, r: r, dev: dev, cache: cache, next: 1 << 62,
		streams: make(map[uint64]*scriptedStream), blocks: make(map[int64]Block), uses: make(map[int64]*scriptedStream),
	}
}

func (p *replay) run() {
	var inside []entry // what happened inside the next call, as far as it is not the call itself
	for i, e := range p.r.entries {
		switch e.action {
		case "segment_alloc", "segment_free", "segment_map", "segment_unmap":
			inside = append(inside, e)
		case "free_completed":
			if i > 0 && p.r.entries[i-1].action == "free_requested" && p.r.entries[i-1].address == e.address {
				continue
			}
			inside = append(inside, e)
		case "free_requested":
			p.emptyCache(&inside)
			immediate := i+1 < len(p.r.entries) && p.r.entries[i+1].action == "free_completed" && p.r.entries[i+1].address == e.address
			p.release(e, immediate)
		case "alloc", "oom":
			grows := len(inside) > 0 && slices.Contains([]string{"segment_alloc", "segment_map"}, inside[len(inside)-1].action)
			if !grows && e.action == "alloc" {
				p.emptyCache(&inside)
			}
			p.alloc(i, e, inside)
			inside = nil
		default:
			p.t.Fatalf("entry %d: unknown action %q", i, e.action)
		}
	}
	p.emptyCache(&inside)
	p.compareHistory()
	p.compareStats()
	p.compareBlocks()
}

// compareHistory requires the recorded events, in their order, to be those of the recording.
func (p *replay) compareHistory() {
	var got []entry
	for _, e := range p.cache.History() {
		got = append(got, entry{string(e.Action), int64(e.Address), e.Size, e.Stream})
	}
	want := slices.Clone(p.r.entries)
	for i := range want {
		if want[i].action == "oom" {
			want[i].address = 0 // the driver's free bytes: other programs had some
		}
	}
	require.Equal(p.t, want, got)
}

// emptyCache calls EmptyCache if segments were released outside of an allocation.
func (p *replay) emptyCache(inside *[]entry) {
	for _, e := range *inside {
		if e.releases() {
			p.complete(*inside)
			p.dev.calls = nil
			require.NoError(p.t, p.cache.EmptyCache(context.Background()))
			require.Equal(p.t, driverCalls(*inside), p.dev.calls)
			*inside = nil
			return
		}
	}
}

func driverCalls(inside []entry) []string {
	var calls []string
	for _, e := range inside {
		if strings.HasPrefix(e.action, "segment_") {
			calls = append(calls, fmt.Sprintf("%s %d %d", e.action, e.address, e.size))
		}
	}
	return calls
}

// complete marks the events of the blocks ready that the recording shows as freed. In a call that
// releases segments the flush may have waited for some of them; in these recordings it waited for
// all.
func (p *replay) complete(inside []entry) {
	if slices.ContainsFunc(inside, entry.releases) {
		p.order(inside)
		return
	}
	for _, e := range inside {
		if e.action == "free_completed" {
			p.uses[e.address].finish()
			delete(p.uses, e.address)
		}
	}
}

// order makes a flush process the pending frees in the order of the recorded one, which is that of
// a hash table.
func (p *replay) order(inside []entry) {
	completed := map[int64]int{}
	for i, e := range inside {
		if e.action == "free_completed" {
			completed[e.address] = i
			delete(p.uses, e.address)
		}
	}
	for _, q := range p.cache.shards.exact.queues {
		if i, ok := completed[int64(q.head.handout.chunk.Ptr())]; ok {
			q.head.number = uint64(i) // each queue has one, and a flush takes the lowest first
		}
	}
}

func (p *replay) stream(id uint64) *scriptedStream {
	if p.streams[id] == nil {
		p.streams[id] = p.dev.stream(id)
	}
	return p.streams[id]
}

func (p *replay) alloc(i int, e entry, inside []entry) {
	p.complete(inside)
	p.dev.calls = nil
	b, err := p.cache.Alloc(context.Background(), e.size, p.stream(e.stream))
	if e.action == "oom" {
		require.ErrorIs(p.t, err, ErrOutOfMemory, "entry %d", i)
	} else {
		if err != nil || e.address != int64(b.Ptr()) { // require at each entry would take long
			require.NoError(p.t, err, "entry %d", i)
			require.Equal(p.t, e.address, int64(b.Ptr()), "the address of entry %d: %d bytes",
				i, e.size)
		}
		p.blocks[e.address] = b
	}
	if want := driverCalls(inside); len(want) > 0 || len(p.dev.calls) > 0 {
		require.Equal(p.t, want, p.dev.calls, "the driver calls of entry %d", i)
	}
}

func (p *replay) release(e entry, immediate bool) {
	b := p.blocks[e.address]
	delete(p.blocks, e.address)
	if !immediate {
		p.next++
		s := p.dev.stream(p.next)
		s.busy = true
		p.uses[e.address] = s
		require.NoError(p.t, b.RecordStream(s))
	}
	if err := b.Free(); err != nil {
		require.NoError(p.t, err)
	}
}

func (p *replay) compareStats() {
	require.Equal(p.t, p.r.Stats, statsOf211(p.t, p.cache))
	require.Len(p.t, p.r.Stats, 122)
}

func (p *replay) compareBlocks() {
	got, want := map[int64][][]any{}, map[int64][][]any{}
	for _, s := range p.cache.Snapshot().Segments {
		for _, b := range s.Blocks {
			got[int64(s.Address)] = append(got[int64(s.Address)],
				[]any{float64(b.Address), float64(b.Size), float64(b.RequestedSize), string(b.State)})
		}
	}
	for _, s := range p.r.Segments {
		want[s.Address] = s.Blocks
	}
	require.Equal(p.t, want, got)
}

// TestReference makes the calls whose statistics and summary PyTorch printed.
func TestReference(t *testing.T) {
	dev := newScripted(150109880320)
	c, err := New(dev, Config{Exact: true})
	require.NoError(t, err)
	s1, s2 := dev.stream(0), dev.stream(7)
	alloc := func(bytes int64) Block {
		b, err := c.Alloc(context.Background(), bytes, s1)
		require.NoError(t, err)
		return b
	}
	a := alloc(3 << 20)
	alloc(25 << 20)
	alloc(100)
	s2.busy = true
	require.NoError(t, errors.Join(a.RecordStream(s2), a.Free()))
	s2.finish()
	d := alloc(700_000)
	alloc(1<<20 + 1)
	require.NoError(t, d.Free())

	var want map[string]int64
	text, err := os.ReadFile("testdata/memory_stats.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &want))
	require.Equal(t, want, statsOf211(t, c))

	table, err := os.ReadFile("testdata/memory_summary.txt")
	require.NoError(t, err)
	require.Equal(t, string(table), strings.Replace(c.Summary(), "device scripted", "device ID 0    ", 1))
	table, err = os.ReadFile("testdata/memory_summary_abbreviated.txt")
	require.NoError(t, err)
	require.Equal(t, string(table), c.Stats().Summary("ID 0", true))
}

// statsOf211 returns a cache's statistics without those that PyTorch added in 2.12.
func statsOf211(t *testing.T, c *Cache) map[string]int64 {
	m := c.Stats().Map()
	require.Contains(t, m, "num_oom_rejections")
	maps.DeleteFunc(m, func(name string, _ int64) bool {
		return name == "num_oom_rejections" || strings.HasPrefix(name, "reserved_bytes_by_private_pools.")
	})
	return m
}
