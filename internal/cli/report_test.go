package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/trace/ranks"
)

const snapshots = "../recording/testdata/"

// TestPages: each kind of file becomes a page, with and without other options tried.
func TestPages(t *testing.T) {
	for _, file := range []string{testdata + "mnist_mlp.jsonl.gz", snapshots + "mnist_mlp.pickle.gz", snapshots + "sample_with_stacks.pickle"} {
		out := filepath.Join(t.TempDir(), "page.html")
		status, stdout, stderr := runs(t, "report", "-o", out, file)
		require.Equal(t, exitOK, status, stderr)
		require.Empty(t, stdout)
		require.Regexp(t, `page\.html: \d+ KiB\n$`, stderr)
		page, err := os.ReadFile(out)
		require.NoError(t, err)
		require.True(t, bytes.HasPrefix(page, []byte("<!DOCTYPE html>")))
		require.Contains(t, string(page), "<title>"+filepath.Base(file))
		require.Less(t, len(page), 200_000)
		list, err := os.ReadDir(filepath.Dir(out))
		require.NoError(t, err)
		require.Len(t, list, 1, "no other file is left")
		status, stdout, stderr = runs(t, "report", "-o", "-", "--no-whatif", "--title", "a run", file)
		require.Equal(t, exitOK, status, stderr)
		require.Empty(t, stderr)
		require.Contains(t, stdout, "<title>a run")
	}
}

// TestFilesThatAreNoPages: a file that cannot be read or written leaves no other file behind.
func TestFilesThatAreNoPages(t *testing.T) {
	good := testdata + "mnist_mlp.jsonl.gz"
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for want, args := range map[string][]string{
		"truncated":          {"-o", filepath.Join(dir, "page.html"), empty},
		"no such file":       {"-o", filepath.Join(dir, "page.html"), filepath.Join(dir, "missing")},
		"--max-memory":       {"-o", filepath.Join(dir, "page.html"), "--max-memory", "10KB", good},
		"--max-work":         {"-o", filepath.Join(dir, "page.html"), "--max-work", "1000", good},
		"there is no folder": {"-o", filepath.Join(dir, "none", "page.html"), good},
		"is a directory":     {"-o", dir, good},
		"no space left on":   {"-o", "/dev/full", good},
	} {
		status, _, stderr := runs(t, append([]string{"report"}, args...)...)
		require.Equal(t, exitFailed, status, args)
		require.Contains(t, stderr, want)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	}
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, list, 1)
}

// TestInputsStay: no command writes over its input, under whatever name.
func TestInputsStay(t *testing.T) {
	dir := t.TempDir()
	text, err := os.ReadFile(testdata + "mnist_mlp.jsonl.gz")
	require.NoError(t, err)
	profile := []byte(`{"step":1,"rank":0,"world_size":1}` + "\n")
	file, link, hard := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "hard")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	require.NoError(t, os.Symlink(file, link))
	require.NoError(t, os.Link(file, hard))
	t.Chdir(dir)
	for _, command := range []string{"report", "ranks", "diff"} {
		want := text
		if command == "ranks" {
			want = profile
		}
		require.NoError(t, os.WriteFile(file, want, 0o600))
		for _, out := range []string{file, link, hard, "file", "./file", "../" + filepath.Base(dir) + "/file"} {
			for _, in := range []string{file, link, hard} {
				args := []string{command, "-o", out, in}
				if command == "diff" {
					args = append(args, in)
				}
				status, _, stderr := runs(t, args...)
				require.Equal(t, exitFailed, status)
				require.Contains(t, stderr, "would be overwritten; choose another name")
				got, err := os.ReadFile(file)
				require.NoError(t, err)
				require.Equal(t, want, got)
			}
		}
	}
}

// TestStandardInput: a file may come from the standard input.
func TestStandardInput(t *testing.T) {
	text, err := os.ReadFile(testdata + "mnist_mlp.jsonl.gz")
	require.NoError(t, err)
	for want, args := range map[string][]string{
		`"trace":"stdin"`: {"verify", "--json", "-"}, `"config":""`: {"whatif", "--json", "-c", "", "-"}, "<title>stdin": {"report", "-o", "-", "-"},
	} {
		var out, errs bytes.Buffer
		require.Equal(t, exitOK, Run(args, bytes.NewReader(text), &out, &errs), errs.String())
		require.Contains(t, out.String(), want)
	}
}

// TestRanks: files of two ranks become a table, a page and figures.
func TestRanks(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	var texts [2]string
	for rank, ns := range []int{5000000, 2000000} {
		for step := 1; step <= 8; step++ {
			texts[rank] += fmt.Sprintf(`{"step":%d,"trace_id":"%s","rank":%d,"world_size":2,"host_time_ns":10000000,"collectives":[{"number":%[1]d,"time_ns":%[4]d}]}`+"\n",
				step, id, rank, ns)
		}
	}
	zero, one := write(t, "0", texts[0]), write(t, "1", texts[1])
	page := filepath.Join(t.TempDir(), "page")
	status, stdout, stderr := runs(t, "ranks", "-o", page, "--title", "two", "--trace-url", "http://localhost:16686/trace/{trace_id}", zero, one)
	require.Equal(t, exitOK, status, stderr)
	const headline = "the straggler is rank 1: it held the others up for 24ms, 30.0% of the steps' time, all others together waited 24ms for it, " +
		"and it came last in 8 of 8 steps (one-sided binomial test, Bonferroni-corrected: p = 0.0078)"
	require.Contains(t, stdout, headline+"\n")
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(html), "<title>two: 2 ranks")
	require.Contains(t, string(html), `"trace_url":"http://localhost:16686/trace/`+id+`"`)
	status, stdout, stderr = runs(t, "ranks", "--json", zero, one)
	require.Equal(t, exitOK, status, stderr)
	var r ranks.Report
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Equal(t, 1, r.Straggler)
	require.Equal(t, id, r.Waits[0].TraceID)
	status, stdout, _ = runs(t, "ranks", "-o", "-", zero, one)
	require.Equal(t, exitOK, status)
	require.True(t, strings.HasPrefix(stdout, "<!DOCTYPE html>"))
	require.NotContains(t, stdout, headline+"\n", "the page alone")

	for want, args := range map[string][]string{
		"none": {filepath.Join(t.TempDir(), "none")}, "there is no folder": {"-o", filepath.Join(t.TempDir(), "no", "folder"), zero, one},
		"line 1": {write(t, "bad", "nonsense\n")}, `the address of traces "localhost"`: {"--trace-url", "localhost", zero, one},
	} {
		status, _, stderr := runs(t, append([]string{"ranks"}, args...)...)
		require.Equal(t, exitFailed, status)
		require.Contains(t, stderr, want)
	}
}
