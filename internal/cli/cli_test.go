package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace/record"
)

const testdata = "../../memcache/testdata/recordings/"

// recordings returns all recordings, or the short ones with -short and with the race detector,
// because a replay has only one goroutine.
func recordings(t testing.TB) (files []string) {
	all, err := filepath.Glob(testdata + "*.jsonl.gz")
	require.NoError(t, err)
	for _, file := range all {
		if !race.Enabled && !testing.Short() || !large(t, file) {
			files = append(files, file)
		}
	}
	require.NotEmpty(t, files)
	return files
}

func large(t testing.TB, file string) bool {
	info, err := os.Stat(file)
	require.NoError(t, err)
	return info.Size() > 64<<10
}

// runs runs a command line.
func runs(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = Run(args, strings.NewReader(""), &out, &errs)
	return status, out.String(), errs.String()
}

// objects reads one JSON object a line.
func objects(t *testing.T, text string) (list []map[string]any) {
	t.Helper()
	for _, l := range strings.Split(strings.TrimSpace(text), "\n") {
		var o map[string]any
		require.NoError(t, json.Unmarshal([]byte(l), &o), l)
		list = append(list, o)
	}
	return list
}

// TestVerifyEveryRecording: no recording has a difference.
func TestVerifyEveryRecording(t *testing.T) {
	files := append(recordings(t), "../recording/testdata/mnist_mlp.pickle.gz", "../recording/testdata/sample_with_stacks.pickle")
	status, stdout, stderr := runs(t, append([]string{"verify", "--json"}, files...)...)
	require.Equal(t, exitOK, status, stderr)
	require.Empty(t, stderr)
	list := objects(t, stdout)
	require.Len(t, list, len(files))
	for i, o := range list {
		require.Equal(t, filepath.Base(files[i]), o["trace"])
		for _, key := range []string{"address_mismatches", "call_mismatches", "stat_mismatches", "block_mismatches"} {
			require.Zero(t, o[key], "%s of %s", key, o["trace"])
		}
		for _, key := range []string{"allocs", "peak_allocated", "peak_reserved", "ns_per_op"} {
			require.Positive(t, o[key], "%s of %s", key, o["trace"])
		}
		for _, key := range []string{"config", "retries", "ooms"} {
			require.Contains(t, o, key)
		}
	}
	files = slices.DeleteFunc(files, func(name string) bool {
		return large(t, name) || testing.Short() && !strings.Contains(name, "maxsplit64gc08") &&
			!strings.Contains(name, "pickle")
	})
	status, stdout, _ = runs(t, append([]string{"verify"}, files...)...)
	require.Equal(t, exitOK, status)
	require.Equal(t, 1+len(files)+2, strings.Count(stdout, "\n"), "two have a remark")
	require.Contains(t, stdout, "mnist_mlp.pickle.gz: the recording has no statistics to compare\n")
	require.Regexp(t, `(?m)^tight\.maxsplit64gc08\.jsonl\.gz +1500 +0 `, stdout)
}

// TestDeparture: one byte more in the header's statistics fails the verification of that file, and
// of no other.
func TestDeparture(t *testing.T) {
	text := "{\"conf\":\"\",\"total_memory\":1073741824,\"limit\":null,\"segments\":[{\"address\":4194304,\"total_size\":2097152,\"stream\":0,\"blocks\":[[4194304,512,100,\"active_pending_free\"],[4194816,2096640,0,\"inactive\"]]}],\"stats\":{\"allocated_bytes.all.peak\":512}}\n" +
		"[\"segment_alloc\",4194304,2097152,0]\n[\"alloc\",4194304,100,0]\n[\"free_requested\",4194304,100,0]\n"
	good := write(t, "good.jsonl", text)
	bad := write(t, "bad.jsonl", strings.Replace(text, ":512", ":1024", 1))
	status, _, _ := runs(t, "verify", good)
	require.Equal(t, exitOK, status)
	status, stdout, stderr := runs(t, "verify", "--json", good, bad)
	require.Equal(t, exitDiffers, status)
	require.Empty(t, stderr)
	list := objects(t, stdout)
	require.Zero(t, list[0]["stat_mismatches"])
	require.EqualValues(t, 1, list[1]["stat_mismatches"])
	require.Equal(t, "allocated_bytes.all.peak is 512 here, and 1024 in the recording", list[1]["first_mismatch"])

	status, stdout, _ = runs(t, "verify", bad)
	require.Equal(t, exitDiffers, status)
	require.Contains(t, stdout, "bad.jsonl: 0 addresses, 0 calls, 1 statistics and 0 blocks differ; first: ")
}

func write(t *testing.T, name, text string) string {
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// TestBadFiles: each bad file has an error line, and the other files are still verified.
func TestBadFiles(t *testing.T) {
	empty := write(t, "empty", "")
	missing := filepath.Join(t.TempDir(), "missing")
	status, stdout, stderr := runs(t, "verify", "--json", empty, testdata+"mnist_mlp.jsonl.gz", missing)
	require.Equal(t, exitFailed, status)
	require.Len(t, objects(t, stdout), 1)
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	require.Len(t, lines, 2)
	require.Contains(t, lines[0], "cistern: empty: the file is truncated")
	require.Contains(t, lines[1], "no such file")

	status, stdout, stderr = runs(t, "verify", "--max-work", "1000", testdata+"mnist_mlp.jsonl.gz")
	require.Equal(t, exitFailed, status)
	require.Empty(t, stdout, "no head of a table without rows")
	require.Contains(t, stderr, "more than 1,000 units of work; raise --max-work")
	status, stdout, stderr = runs(t, "whatif", "-c", "", "--max-memory", "1000", testdata+"mnist_mlp.jsonl.gz")
	require.Equal(t, exitFailed, status)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "more than 1000 B of memory; raise --max-memory")

	for _, args := range [][]string{{"verify"}, {"whatif", "-c", ""}} {
		status, stdout, _ = runs(t, append(args, missing, testdata+"mnist_mlp.jsonl.gz", empty)...)
		require.Equal(t, exitFailed, status)
		require.Equal(t, 1, strings.Count(stdout, "trace  "), "one head: %s", stdout)
		require.Equal(t, 0, strings.Index(stdout, "trace  "))
	}
}

// broken is a writer that fails, like a pipe without a reader.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// TestOutputThatCannotBeWritten: a lost table is an error.
func TestOutputThatCannotBeWritten(t *testing.T) {
	for _, args := range [][]string{{"verify"}, {"verify", "--json"}, {"whatif", "-c", ""}, {"report", "-o", "-"}} {
		var errs bytes.Buffer
		require.Equal(t, exitFailed, Run(append(args, testdata+"mnist_mlp.jsonl.gz"), strings.NewReader(""), broken{}, &errs))
		require.Contains(t, errs.String(), "broken pipe")
	}
	for _, args := range [][]string{{"--help"}, {"report", "--help"}, {"completions"}} {
		var errs bytes.Buffer
		require.Equal(t, exitFailed, Run(args, strings.NewReader(""), broken{}, &errs), args)
		require.Equal(t, "cistern: the standard output: broken pipe\n", errs.String(), args)
	}
	page := filepath.Join(t.TempDir(), "page.html")
	var errs bytes.Buffer
	require.Equal(t, exitFailed, Run([]string{"ranks", "-o", page, write(t, "rank0", `{"step":1,"rank":0,"world_size":1}`+"\n")}, strings.NewReader(""), broken{}, &errs))
	require.FileExists(t, page)
}

func TestWhatIf(t *testing.T) {
	file := testdata + "resnet50.jsonl.gz"
	status, stdout, stderr := runs(t, "whatif", "-c", "recorded", "-c", "expandable_segments:True", "--json", file)
	require.Equal(t, exitOK, status, stderr)
	list := objects(t, stdout)
	require.Len(t, list, 2)
	require.Equal(t, "", list[0]["config"])
	require.EqualValues(t, int64(2772434944), list[0]["peak_reserved"])
	require.Equal(t, "expandable_segments:True", list[1]["config"])
	require.Less(t, list[1]["ratio"], 1.03)
	for _, key := range []string{"allocs", "peak_allocated", "driver_calls", "retries", "ooms", "ns_per_op"} {
		require.Contains(t, list[1], key)
	}

	status, stdout, _ = runs(t, "whatif", "-c", "", "-c", "expandable_segments:True", file)
	require.Equal(t, exitOK, status)
	lines := strings.Split(stdout, "\n")
	require.Len(t, lines, 5)
	require.Equal(t, "resnet50.jsonl.gz: expandable_segments:True would have reserved 19 % less (2,644 → 2,138 MiB)", lines[3])
	for _, l := range lines[:3] {
		require.Equal(t, strings.Index(lines[0], "ratio"), strings.LastIndex(l[:strings.Index(lines[0], "driver")-2], " ")+1, "the table is aligned: %s", l)
	}
}

// TestOwnOptions: each option has its effect.
func TestOwnOptions(t *testing.T) {
	estimates := func(file string, configs ...string) []map[string]any {
		args := []string{"whatif", "--json", testdata + file}
		for _, c := range configs {
			args = append(args, "-c", c)
		}
		status, stdout, stderr := runs(t, args...)
		require.Equal(t, exitOK, status, stderr)
		return objects(t, stdout)
	}
	reserved := func(o map[string]any) float64 { return o["peak_reserved"].(float64) }

	list := estimates("segmentation.jsonl.gz", "expandable_segments:True", "expandable_segments:True,expandable_granule_mb:2",
		"expandable_segments:True,expandable_granule_mb:2,expandable_remap:True", "memory_limit:2147483648", "no_caching:True")
	list = list[1:] // after the file's own options
	require.Greater(t, list[1]["driver_calls"], list[0]["driver_calls"])
	require.Less(t, reserved(list[2]), reserved(list[1]))
	require.LessOrEqual(t, reserved(list[3]), float64(2<<30))
	require.Positive(t, list[3]["retries"])
	require.EqualValues(t, 1, list[4]["ratio"])
	require.Greater(t, list[4]["driver_calls"], 1.5*list[4]["allocs"].(float64))

	list = estimates("spin3.jsonl.gz", "exact:False", "per_process_memory_fraction:1.0", "", "exact:True")
	require.Len(t, list, 3, "the last two are the file's own options")
	require.Less(t, list[1]["retries"], list[0]["retries"], "after a flush the free blocks are searched before the driver is asked")
	require.Zero(t, list[2]["retries"], "the recorded limit is lifted")
}

// TestRecordingOfOurOwn: a recording of trace/record verifies under the cache's options, without a
// flag, and other options can be tried.
func TestRecordingOfOurOwn(t *testing.T) {
	dev, err := null.New(null.Config{Capacity: 1 << 30})
	require.NoError(t, err)
	cache, err := memcache.New(dev, memcache.Config{MaxSplitSizeMB: 30, MemoryLimit: 100 << 20})
	require.NoError(t, err)
	s, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "run.jsonl.gz")
	f, err := os.Create(path)
	require.NoError(t, err)
	r, err := record.Start(f, cache, record.Options{Gzip: true, Stacks: memcache.StacksAll})
	require.NoError(t, err)
	for i := range int64(40) {
		step := r.Step(i)
		a, err := cache.Alloc(t.Context(), i<<21+1, s)
		require.NoError(t, err)
		b, err := cache.Alloc(t.Context(), 50<<20-i, s)
		if err != nil {
			require.ErrorIs(t, err, memcache.ErrOutOfMemory)
		}
		require.NoError(t, errors.Join(b.Free(), a.Free()))
		step.End()
	}
	require.NoError(t, errors.Join(r.Close(), f.Close()))

	status, out, errs := runs(t, "verify", "--json", path)
	require.Equal(t, exitOK, status, out+errs)
	o := objects(t, out)[0]
	require.Equal(t, "max_split_size_mb:30,memory_limit:104857600", o["config"])
	require.EqualValues(t, 80, o["allocs"])
	require.EqualValues(t, cache.Stats().NumOOMs, o["ooms"])
	require.Positive(t, o["ooms"])
	require.EqualValues(t, cache.MaxMemoryReserved(), o["peak_reserved"])
	require.NotContains(t, o, "notes")
	status, out, errs = runs(t, "whatif", "--json", "-c", "recorded", "-c", "per_process_memory_fraction:1.0", path)
	require.Equal(t, exitOK, status, out+errs)
	list := objects(t, out)
	require.EqualValues(t, cache.MaxMemoryReserved(), list[0]["peak_reserved"])
	require.EqualValues(t, 0, list[1]["ooms"])
	require.Equal(t, "exact:False,max_split_size_mb:30,memory_limit:104857600", list[0]["config"])
	status, out, errs = runs(t, "whatif", "-c", "", "-c", "exact:True", path)
	require.Equal(t, exitOK, status, out+errs)
	require.Regexp(t, `(?m)^run\.jsonl\.gz  exact:False `, out)
	require.Regexp(t, `(?m)^run\.jsonl\.gz  exact:True `, out)
	require.Contains(t, out, "PyTorch's default would have reserved")
}

// TestNotesOfOurOwn: an estimate notes that it leaves private pools out, and a verification that the
// program reset its statistics.
func TestNotesOfOurOwn(t *testing.T) {
	const (
		pools = "requests of private pools are replayed in the default pool"
		reset = "the program reset its statistics: peaks, retries and requests out of memory count from then on"
	)
	for _, private := range []bool{false, true} {
		dev, err := null.New(null.Config{Capacity: 1 << 30})
		require.NoError(t, err)
		cache, err := memcache.New(dev, memcache.Config{})
		require.NoError(t, err)
		s, err := dev.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		pool, err := cache.NewPool(memcache.PoolOptions{})
		require.NoError(t, err)
		var file bytes.Buffer
		r, err := record.Start(&file, cache, record.Options{})
		require.NoError(t, err)
		ctx := t.Context()
		if private {
			ctx = pool.Context(ctx)
		} else {
			cache.ResetPeakStats()
		}
		b, err := cache.Alloc(ctx, 1000, s)
		require.NoError(t, err)
		require.NoError(t, errors.Join(b.Free(), r.Close()))
		path := write(t, "run.jsonl", file.String())
		for command, want := range map[string]string{"verify": reset, "whatif": pools} {
			_, out, _ := runs(t, command, path)
			require.Equal(t, private == (want == pools), strings.Contains(out, want), out)
		}
	}
}

// TestBooksHaveNoTimes: a recording that cannot be replayed has no time of a call, and no retries
// unless the file has them.
func TestBooksHaveNoTimes(t *testing.T) {
	path := write(t, "run.jsonl", `{"format":"cistern recording 1","conf":"","total_memory":1073741824,"limit":null}
["failed",0,512,7]
`)
	status, out, errs := runs(t, "verify", path)
	require.Equal(t, exitOK, status, out+errs)
	require.Regexp(t, `(?m)^run\.jsonl +0 +0 +0 B +0 B +- +0 +-$`, out)
	_, out, _ = runs(t, "verify", "--json", path)
	require.NotContains(t, objects(t, out)[0], "ns_per_op")
	require.NotContains(t, objects(t, out)[0], "retries")
}
