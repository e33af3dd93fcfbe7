package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/perfettotest"
	"github.com/cistern-ml/cistern/trace"
)

// pprofSums returns the sums of a file by sample type and, with a tag's value as prefix, by tag.
func pprofSums(t *testing.T, name, tag string) map[string]int64 {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	p, err := profile.Parse(f)
	require.NoError(t, err)
	sums := map[string]int64{}
	for i, kind := range p.SampleType {
		for _, s := range p.Sample {
			sums[kind.Type] += s.Value[i]
			if v := s.Label[tag]; len(v) > 0 {
				sums[v[0]+" "+kind.Type] += s.Value[i]
			}
		}
	}
	return sums
}

// requireReadable: in all pprof files of a folder the innermost calls are the program's own, and
// others of the library are those that programs can call. Samples without a stack have the layer.
func requireReadable(t *testing.T, dir string) {
	t.Helper()
	private := regexp.MustCompile(`cistern/(?:[a-z]+/)*[a-z]+\.(?:[^.]*\.)?(?:[a-z]|\(\*[a-z])`)
	names, err := filepath.Glob(filepath.Join(dir, "*.pb.gz"))
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		f, err := os.Open(name)
		require.NoError(t, err)
		defer f.Close()
		p, err := profile.Parse(f)
		require.NoError(t, err)
		stacks := 0
		for _, s := range p.Sample {
			for i, l := range s.Location {
				function := l.Line[0].Function.Name
				if l.Line[0].Function.Filename == "" {
					continue
				}
				if ours := strings.Contains(function, "cistern/examples/mnist"); ours || i == 0 {
					require.True(t, ours, "%s: %s", name, function)
					stacks++
					continue
				}
				require.NotRegexp(t, private, function, name)
			}
		}
		require.Positive(t, stacks, name)
	}
}

// TestMemprofile: the files of one run agree with each other and with the lines of its steps.
func TestMemprofile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "if", "absent")
	steps := filepath.Join(t.TempDir(), "steps.jsonl")
	var out, errs bytes.Buffer
	require.Equal(t, 0, run(context.Background(), []string{"-data", dataOf(t, 128, 10), "-batch", "16", "-epochs", "1",
		"-memprofile", dir, "-profile-steps", "3,5-6", "-steps", steps}, &out, &errs), errs.String())

	var lines []trace.StepProfile
	text, err := os.ReadFile(steps)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		var p trace.StepProfile
		require.NoError(t, json.Unmarshal([]byte(line), &p))
		lines = append(lines, p)
	}
	require.Len(t, lines, 8)
	for i, p := range lines {
		require.Equal(t, int64(i+1), p.Step)
		name := filepath.Join(dir, fmt.Sprintf("step-%d.pb.gz", p.Step))
		if i != 2 && i != 4 && i != 5 {
			require.NoFileExists(t, name)
			continue
		}
		got := pprofSums(t, name, "category")
		require.Equal(t, p.AllocatedPeak, got["peak_space"])
		for _, c := range p.Peak.Categories {
			require.Equal(t, c.Bytes, got[c.Name+" peak_space"], c.Name)
		}
	}
	requireReadable(t, dir)
	if !testing.Short() { // the command reads it with the same package
		top, err := exec.CommandContext(t.Context(), "go", "tool", "pprof", "-top", filepath.Join(dir, "step-5.pb.gz")).Output()
		require.NoError(t, err)
		require.Contains(t, string(top), "mnist.(*trainer).compute")
		require.NotContains(t, string(top), "cistern/tensor.")
	}

	heap := pprofSums(t, filepath.Join(dir, "heap.pb.gz"), "category")
	require.Regexp(t, regexp.MustCompile(`MemoryAllocated +\S+ MiB +`+grouped(heap["inuse_space"])+` bytes`), out.String())
	require.Positive(t, heap["alloc_space"])
	peak := pprofSums(t, filepath.Join(dir, "peak.pb.gz"), "category")
	require.Equal(t, peak["peak_space"], heap["peak_space"], "so that steps can be compared with it")
	require.Regexp(t, regexp.MustCompile(`MaxMemoryAllocated +\S+ MiB +`+grouped(peak["peak_space"])+` bytes`), out.String())

	verified, err := exec.CommandContext(t.Context(), "go", "run", "../..", "verify",
		filepath.Join(dir, "recording.jsonl.gz"), filepath.Join(dir, "snapshot.pickle")).CombinedOutput()
	require.NoError(t, err, "%s", verified)
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix(page, []byte("<!DOCTYPE html>")))
	require.NoDirExists(t, filepath.Join(dir, "oom"))

	var events []struct {
		Name, Ph, Cat string
		TS            float64
	}
	text, err = os.ReadFile(filepath.Join(dir, "trace.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &events))
	count, first := map[string]int{}, map[string]float64{}
	for _, e := range events {
		key := e.Name + " " + e.Ph
		if e.Cat == "device step" {
			key = "device's " + key
		}
		if count[key]++; count[key] == 1 {
			first[key] = e.TS
		}
		first[key] = min(first[key], e.TS)
	}
	require.GreaterOrEqual(t, first["memory allocated C"], first["step 3 X"], "nothing is seen before")
	for _, step := range []int{3, 5, 6} {
		require.Equal(t, 1, count[fmt.Sprintf("step %d X", step)], "%v", count)
		require.Equal(t, 1, count[fmt.Sprintf("device's step %d X", step)], "%v", count)
	}
	require.Empty(t, perfettotest.Check(text))
	require.Zero(t, count["step 4 X"])
}

// grouped formats a number with commas.
func grouped(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// TestMemprofileOutOfMemory: the files have the state of the failure, in which more memory is in
// use than at the end of the program.
func TestMemprofileOutOfMemory(t *testing.T) {
	dir := t.TempDir()
	var out, errs bytes.Buffer
	require.Equal(t, 1, run(context.Background(), []string{"-data", dataOf(t, 128, 10), "-capacity", "27MiB", "-memprofile", dir}, &out, &errs))
	require.Contains(t, errs.String(), "out of memory")
	requireReadable(t, dir)
	requireReadable(t, filepath.Join(dir, "oom"))
	at := pprofSums(t, filepath.Join(dir, "oom", "heap.pb.gz"), "category")
	end := pprofSums(t, filepath.Join(dir, "heap.pb.gz"), "category")
	require.Greater(t, at["inuse_space"], end["inuse_space"])
	require.Positive(t, at["activation inuse_space"]+at["gradient inuse_space"])
	for _, name := range []string{"oom/peak.pb.gz", "oom/snapshot.pickle", "oom/report.html", "recording.jsonl.gz", "report.html", "trace.json", "snapshot.pickle", "peak.pb.gz"} {
		require.FileExists(t, filepath.Join(dir, name))
	}
}

// TestPages: the pages are served while the program trains, and not after it.
func TestPages(t *testing.T) {
	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	r, w := io.Pipe()
	done := make(chan int)
	go func() {
		status := run(ctx, []string{"-data", dataOf(t, 128, 10), "-batch", "1", "-epochs", "1000", "-http", "localhost:0"}, w, w)
		w.Close()
		done <- status
	}()
	lines := bufio.NewScanner(r)
	require.True(t, lines.Scan())
	url, ok := strings.CutPrefix(lines.Text(), "memory pages on ")
	require.True(t, ok, lines.Text())
	go func() { _, _ = io.Copy(io.Discard, r) }()

	request, err := http.NewRequest(http.MethodGet, url+"steps", nil)
	require.NoError(t, err)
	request.Header.Set("Accept", "text/event-stream")
	events, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer events.Body.Close()
	stream := bufio.NewScanner(events.Body)
	for stream.Scan() && !strings.HasPrefix(stream.Text(), "data: {") {
	}
	require.Contains(t, stream.Text(), `"categories"`)
	for _, page := range []string{"", "report", "heap", "peak", "snapshot", "stats", "../pprof/heap", "../../"} {
		got, err := http.Get(url + page)
		require.NoError(t, err)
		require.NoError(t, got.Body.Close())
		require.Equal(t, http.StatusOK, got.StatusCode, page)
		rebound, err := http.NewRequest(http.MethodGet, url+page, nil)
		require.NoError(t, err)
		rebound.Host = "rebound.example"
		got, err = http.DefaultClient.Do(rebound)
		require.NoError(t, err)
		require.NoError(t, got.Body.Close())
		require.Equal(t, http.StatusForbidden, got.StatusCode, page)
	}
	interrupt()
	for stream.Scan() { // it ends
	}
	<-done
	_, err = http.Get(url)
	require.Error(t, err)
	http.DefaultClient.CloseIdleConnections()
}
