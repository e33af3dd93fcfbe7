package cli

import (
	"bytes"
	"encoding/json"
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

// TestFilesThatAreNoPages: what can't be read or written leaves no file behind.
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
	for _, command := range []string{"report", "ranks"} {
		want := text
		if command == "ranks" {
			want = profile
		}
		require.NoError(t, os.WriteFile(file, want, 0o600))
		for _, out := range []string{file, link, hard, "file", "./file", "../" + filepath.Base(dir) + "/file"} {
			for _, in := range []string{file, link, hard} {
				status, _, stderr := runs(t, command, "-o", out, in)
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
	zero := write(t, "0", `{"step":1,"rank":0,"world_size":2,"collectives":[{"number":1,"time_ns":5000000}]}`+"\n")
	one := write(t, "1", `{"step":1,"rank":1,"world_size":2,"collectives":[{"number":1,"time_ns":2000000}]}`+"\n")
	page := filepath.Join(t.TempDir(), "page")
	status, stdout, stderr := runs(t, "ranks", "-o", page, "--title", "two", zero, one)
	require.Equal(t, exitOK, status, stderr)
	require.Contains(t, stdout, "the straggler is rank 1: it came last to 1 of 1 operations, held the others up for 3ms")
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(html), "<title>two – 2 ranks")
	status, stdout, stderr = runs(t, "ranks", "--json", zero, one)
	require.Equal(t, exitOK, status, stderr)
	var r ranks.Report
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Equal(t, 1, r.Straggler)
	status, stdout, _ = runs(t, "ranks", "-o", "-", zero, one)
	require.Equal(t, exitOK, status)
	require.True(t, strings.HasPrefix(stdout, "<!DOCTYPE html>"))
	require.NotContains(t, stdout, "straggler is rank 1: it came last to 1 of 1 operations, held the others up for 3ms, and they waited 3ms for it\n", "the page alone")

	for want, args := range map[string][]string{
		"none": {filepath.Join(t.TempDir(), "none")}, "there is no folder": {"-o", filepath.Join(t.TempDir(), "no", "folder"), zero, one},
		"line 1": {write(t, "bad", "nonsense\n")},
	} {
		status, _, stderr := runs(t, append([]string{"ranks"}, args...)...)
		require.Equal(t, exitFailed, status)
		require.Contains(t, stderr, want)
	}
}
