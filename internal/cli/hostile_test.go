package cli

import (
	"bytes"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/accounting"
	"github.com/cistern-ml/cistern/internal/budget"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/replay"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace/diff"
	"github.com/cistern-ml/cistern/trace/heap"
	"github.com/cistern-ml/cistern/trace/ranks"
	"github.com/cistern-ml/cistern/trace/record"
	"github.com/cistern-ml/cistern/trace/report"
	"github.com/cistern-ml/cistern/trace/torchsnapshot"
)

var long = flag.Bool("long", false, "more mutations of files")

// smallFiles returns files of at most 4 KB, one of each form.
func smallFiles(t *testing.T) map[string][]byte {
	t.Helper()
	pickle, err := os.ReadFile(snapshots + "sample_with_stacks.pickle")
	require.NoError(t, err)
	files := map[string][]byte{
		"lines": []byte(`{"torch":"2.11.0","conf":"garbage_collection_threshold:0.5,expandable_segments:True","total_memory":1073741824,"limit":52428800,"stats":{"num_alloc_retries":1,"num_sync_all_streams":2},` +
			`"pools":{"1":[0,1]},"segments":[` + segment(at, 20*mib, block(at, 4*mib, 4*mib, "active_allocated"), block(at+4*mib, 16*mib, 0, "inactive")) + "]}\n" +
			event("segment_map", at, 20*mib) + "\n" + event("pool_new", 1, 1) + "\n" + event("pool_begin", 1, 0) + "\n" + event("alloc", at, 4*mib) + "\n" +
			event("pool_end", 1, 0) + "\n" + event("alloc", at+4*mib, 5000) + "\n" + event("record_stream", at+4*mib, 0) + "\n" + event("free_requested", at+4*mib, 5000) + "\n" +
			event("oom", 5, 1<<30) + "\n" + event("free_completed", at+4*mib, 5000) + "\n" + event("empty_cache", 0, 0) + "\n"),
		"late": []byte(`{"conf":"max_split_size_mb:20","segments":[` +
			segment(at, 1024*mib, block(at, 1024*mib, 1024*mib, "active_allocated")) + "," + segment(at+1024*mib, 20*mib, block(at+1024*mib, 20*mib, 4*mib, "inactive")) + "]}\n" +
			event("free_completed", at+1044*mib, 4*mib) + "\n" + event("segment_free", at+1044*mib, 20*mib) + "\n" +
			event("alloc", at+1024*mib, 4*mib) + "\n" + event("free_requested", at+1024*mib, 4*mib) + "\n" + event("free_completed", at+1024*mib, 4*mib) + "\n"),
		"pickle": pickle,
		"dump": []byte(`{"segments":[{"device":0,"address":4194304,"total_size":2097152,"stream":0,"segment_type":"small","segment_pool_id":[0,1],"is_expandable":false,` +
			`"blocks":[{"size":512,"requested_size":100,"state":"active_allocated"},{"size":2096640,"requested_size":0,"state":"inactive"}]}],"device_traces":[[` +
			`{"action":"segment_alloc","addr":4194304,"size":2097152,"stream":0,"time_us":1},{"action":"alloc","addr":4194304,"size":100,"stream":0,"time_us":2,"frames":[{"name":"f","filename":"x","line":1}],"user_metadata":"step=1"}]],` +
			`"allocator_settings":{"PYTORCH_CUDA_ALLOC_CONF":"roundup_power2_divisions:[1:2,>:8]","max_split_size":-1,"expandable_segments":false},"external_annotations":[{"name":"a","stage":"START","device":0,"time_us":1}]}`),
	}
	dev, err := null.New(null.Config{Capacity: 1 << 30})
	require.NoError(t, err)
	c, err := memcache.New(dev, memcache.Config{MaxSplitSizeMB: 30})
	require.NoError(t, err)
	s, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	require.NoError(t, c.RecordHistory(memcache.HistoryOptions{Entries: 100}))
	var own, snapshot bytes.Buffer
	r, err := record.Start(&own, c, record.Options{Stacks: memcache.StacksNone})
	require.NoError(t, err)
	step := r.Step(1)
	ctx := memcache.WithLabel(t.Context(), memcache.Label{Module: "a.b", Category: memcache.CategoryActivation})
	b, err := c.Alloc(ctx, 5000, s)
	require.NoError(t, err)
	_, err = c.Alloc(ctx, 30<<20, s)
	require.NoError(t, err)
	require.NoError(t, errors.Join(b.Free(), c.EmptyCache(ctx)))
	step.End()
	require.NoError(t, r.Close())
	require.NoError(t, torchsnapshot.Write(&snapshot, torchsnapshot.State{Snapshot: c.Snapshot(), Config: c.Config()}))
	files["own"] = regexp.MustCompile(`"stats":\{[^}]*\}`).ReplaceAll(own.Bytes(), []byte(`"stats":{"num_ooms":0}`))
	files["snapshot"] = snapshot.Bytes()
	files["ranks"] = []byte(`{"step":1,"rank":0,"world_size":2,"communicator":"a","allocated_peak":7,"peak":{"categories":[{"name":"activation","bytes":7}]},"collectives":[{"number":1,"time_ns":5000000,"bytes":8}]}` + "\n" +
		`{"step":1,"rank":1,"world_size":2,"communicator":"a","collectives":[{"number":1,"time_ns":2000000}],"replayed_collectives":[{"count":1}]}` + "\n")
	var profile bytes.Buffer
	require.NoError(t, heap.Of(c).Write(&profile))
	plain, err := gzip.NewReader(&profile)
	require.NoError(t, err)
	files["heap"], err = io.ReadAll(plain)
	require.NoError(t, err)
	for name, text := range files {
		require.LessOrEqual(t, len(text), 4<<10, name)
	}
	return files
}

// consume runs the work of the subcommands on a file. Charged and allocated costs must be within
// the budget.
func consume(t *testing.T, file []byte, page bool) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	defer func() {
		if cause := recover(); cause != nil {
			name := filepath.Join(os.TempDir(), "cistern-hostile")
			_ = os.WriteFile(name, file, 0o600)
			t.Fatalf("%v: the file is %s", cause, name)
		}
	}()
	_, _ = ranks.Read(ranks.Options{}, ranks.File{Name: "file", Reader: bytes.NewReader(file)})
	if list, err := diff.Read(diff.Options{}, diff.File{Name: "A", Reader: strings.NewReader(`{"step":1}`)}, diff.File{Name: "B", Reader: bytes.NewReader(file)}); err == nil {
		for _, d := range list {
			printDiff(io.Discard, d)
		}
	}
	list, err := recording.Read(bytes.NewReader(file), "file", recording.Options{Details: true})
	for _, rec := range list {
		if err == nil {
			replays(t, rec)
		}
		memory, work := rec.Budget.Spent()
		require.LessOrEqual(t, memory, int64(budget.Floor))
		require.LessOrEqual(t, work, int64(budget.Floor))
	}
	if page && err == nil {
		reports, err := report.Read(bytes.NewReader(file), "file", report.Options{Suggest: true})
		if err == nil {
			require.NoError(t, report.Write(io.Discard, reports...))
		}
	}
	runtime.ReadMemStats(&after)
	require.LessOrEqual(t, after.TotalAlloc-before.TotalAlloc, uint64(budget.Floor))
	require.Zero(t, accounting.Faults(), "no file makes the cache's figures wrong")
}

// replays verifies a recording, and tries other options.
func replays(t *testing.T, rec *recording.Recording) {
	p, err := recording.NewProgram(rec)
	if err != nil {
		return
	}
	if _, err := replay.Verify(p); err != nil {
		return
	}
	s, err := replay.NewScenario(p)
	if err != nil {
		require.ErrorIs(t, err, budget.ErrExceeded)
		return
	}
	_, _ = s.Estimate(memcache.Config{Exact: true, ExpandableSegments: true})
}

// TestDamagedFiles: prefixes, flipped bits and mixtures of several changes of files of each form
// cause no panic, and cost no more than their budget.
func TestDamagedFiles(t *testing.T) {
	files := smallFiles(t)
	every, mutations := 97, 300
	switch {
	case *long:
		every, mutations = 1, 150_000 // of each of eight files
	case race.Enabled:
		every, mutations = 997, 30
	}
	for name, file := range files {
		t.Run(name, func(t *testing.T) {
			consume(t, file, true)
			n := 0
			some := func(damaged []byte) {
				if n++; n%every == 0 {
					consume(t, damaged, n%1009 == 0)
				}
			}
			for i := range file {
				some(file[:i])
			}
			for i := range len(file) * 8 {
				damaged := bytes.Clone(file)
				damaged[i/8] ^= 1 << (i % 8)
				some(damaged)
			}
			r := rand.New(rand.NewPCG(uint64(len(file)), 1))
			for i := range mutations {
				consume(t, mutated(r, file), i%1009 == 0)
			}
		})
	}
}

// TestCostlyFiles: small files with a high cost end with a result or an error, and allocate little.
func TestCostlyFiles(t *testing.T) {
	good := write(t, "good", `{"step":1}`)
	for name, file := range map[string]string{
		"no entries":       `{"stats":{"num_sync_all_streams":1}}`,
		"many flushes":     `{"stats":{"num_sync_all_streams":100000,"num_alloc_retries":0}}` + "\n" + event("oom", 5, 512),
		"empty segments":   `{"segments":[` + strings.Repeat("{},", 10_000_000) + "{}]}",
		"empty blocks":     `{"segments":[{"blocks":[` + strings.Repeat("[],", 10_000_000) + "[]]}]}",
		"many statistics":  `{"stats":{` + strings.Repeat(`"a":1,`, 5_000_000) + `"a":1}}`,
		"many pools":       `{"pools":{` + strings.Repeat(`"1":[0,1],`, 3_000_000) + `"1":[0,1]}}`,
		"the end of ours":  `{"format":"cistern recording 1"}` + "\n" + `{"stats":{},"details":[` + strings.Repeat("[],", 10_000_000) + "[]]}",
		"large requests":   `{"conf":""}` + "\n" + strings.Repeat(event("oom", 5, 1<<50)+"\n", 300),
		"many options":     `{"format":"cistern recording 1"}` + "\n" + `["set_options",2147483648,0,0]`,
		"a world of ranks": `{"step":1,"rank":0,"world_size":4096,"allocated_peak":1}`,
		"a long string":    `{"device_traces":[[{"action":"` + strings.Repeat("a", 30_000_000),
		"samples":          "\x0a\x04\x08\x01\x10\x02" + strings.Repeat("\x12\x00", 5_000_000),
		"labels":           "\x0a\x04\x08\x01\x10\x02" + strings.Repeat("\x12\x06\x1a\x04\x08\x01\x18\x01", 1_000_000),
		"lines":            "\x0a\x04\x08\x01\x10\x02\x22\x80\x80\x80\x02" + strings.Repeat("\x22\x00", 2<<20),
		"ranks of a file":  rankLines(4096),
	} {
		t.Run(name, func(t *testing.T) {
			if race.Enabled && len(file) > 1<<20 {
				t.Skip("large")
			}
			for _, command := range [][]string{{"verify"}, {"whatif"}, {"report", "-o", "-"}, {"ranks"}, {"diff", good}} {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				var errs bytes.Buffer
				Run(append(command, "-"), strings.NewReader(file), io.Discard, &errs)
				runtime.ReadMemStats(&after)
				require.LessOrEqual(t, after.TotalAlloc-before.TotalAlloc, uint64(budget.Floor), command)
				require.LessOrEqual(t, strings.Count(errs.String(), "\n"), 1, errs.String())
			}
		})
	}
}

// rankLines returns profiles of many ranks, with one step each.
func rankLines(n int) string {
	var b strings.Builder
	for rank := range n {
		fmt.Fprintf(&b, `{"step":1,"rank":%d,"world_size":%d}`+"\n", rank, n)
	}
	return b.String()
}

// mutated returns a file with up to five changes: replaced, deleted or duplicated bytes, and
// changed numbers.
func mutated(r *rand.Rand, file []byte) []byte {
	out := bytes.Clone(file)
	numbers := []string{"0", "1", "-1", "255", "4096", "2147483648", "4294967296", "1152921504606846975", "9223372036854775807", "18446744073709551615", "1e309"}
	for range 1 + r.IntN(5) {
		if len(out) == 0 {
			return out
		}
		from := r.IntN(len(out))
		to := min(len(out), from+1+r.IntN(1<<r.IntN(8)))
		switch r.IntN(5) {
		case 0:
			out[from] = byte(r.Uint32())
		case 1:
			out = append(out[:from:from], out[to:]...)
		case 2:
			out = append(out[:to:to], out[from:]...)
		case 3:
			k := r.IntN(len(out))
			out = append(append(bytes.Clone(out[:k]), out[from:to]...), out[k:]...)
		case 4:
			for from < len(out) && (out[from] < '0' || out[from] > '9') {
				from++
			}
			end := from
			for end < len(out) && out[end] >= '0' && out[end] <= '9' {
				end++
			}
			out = append(append(bytes.Clone(out[:from]), numbers[r.IntN(len(numbers))]...), out[end:]...)
		}
	}
	return out
}

// TestFilesWithoutEnd: pickles of less than 700 bytes that never ended or overflowed the stack, and
// text that a terminal would interpret.
func TestFilesWithoutEnd(t *testing.T) {
	files, err := filepath.Glob("testdata/*.pickle")
	require.NoError(t, err)
	require.Len(t, files, 3)
	for _, file := range files {
		for _, command := range [][]string{{"verify"}, {"whatif"}, {"report", "-o", "-"}, {"diff", file}} {
			status, _, stderr := runs(t, append(command, file)...)
			require.LessOrEqual(t, status, exitFailed)
			require.LessOrEqual(t, strings.Count(stderr, "\n"), 1)
		}
	}
	text := `{"conf":"a\u001b[31mred\u0007:1,x\ny:2","stats":{"\u001b[31mx":1},"segments":[]}` + "\n"
	file := write(t, "\x1b[31mname\ttab", text)
	status, stdout, _ := runs(t, "verify", file)
	require.Equal(t, exitOK, status)
	require.NotContains(t, stdout, "\x1b")
	require.Contains(t, stdout, `\x1b[31mname\ttab: the statistic \x1b[31mx is not known`)
	require.Contains(t, stdout, `a\x1b[31mred\a:1 is unknown and ignored`)
	_, _, stderr := runs(t, "verify", filepath.Join(t.TempDir(), "\x1bnone"))
	require.Contains(t, stderr, `\x1bnone: no such file`)
}

// TestManyDevices: the devices of a file share the work of each set of options, which a single
// device may spend alone, and one line reports an excess.
func TestManyDevices(t *testing.T) {
	device := `[{"action":"oom","device_free":0,"size":` + strconv.FormatInt(1<<36, 10) + `,"stream":0}]`
	for n, want := range map[int]int{1: exitOK, 300: exitFailed} {
		devices := strings.TrimSuffix(strings.Repeat(device+",", n), ",")
		file := write(t, "many.json", `{"device_traces":[`+devices+`],"segments":[{"device":-1},{"device":-2}]}`)
		status, _, stderr := runs(t, "verify", file)
		require.Equal(t, exitOK, status, stderr)
		status, _, stderr = runs(t, "whatif", "-c", "expandable_segments:True", file)
		require.Equal(t, want, status, stderr)
		if want == exitFailed {
			require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
			require.Contains(t, stderr, "raise --max-work")
		}
	}
}

// TestOwnPanics: a panic of the command's code is not taken for an exit.
func TestOwnPanics(t *testing.T) {
	require.PanicsWithValue(t, "a mistake", func() {
		Run([]string{"verify", "-"}, panicking{}, io.Discard, io.Discard)
	})
}

type panicking struct{}

func (panicking) Read([]byte) (int, error) { panic("a mistake") }
