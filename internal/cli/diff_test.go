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

	"github.com/cistern-ml/cistern/trace/diff"
)

// held is a block of a snapshot: its size, category, module, step and line.
type held struct {
	size             int64
	category, module string
	step, line       int
}

// dump returns a snapshot of PyTorch as JSON, of a program that allocates blocks.
func dump(blocks ...held) string {
	var entries, segments []string
	add := func(action string, addr, size int64, more string) {
		entries = append(entries, fmt.Sprintf(`{"action":%q,"addr":%d,"size":%d,"stream":0%s}`, action, addr, size, more))
	}
	addr := int64(at)
	for _, b := range blocks {
		add("segment_alloc", addr, b.size, "")
		add("alloc", addr, b.size, fmt.Sprintf(`,"time_us":1,"user_metadata":"module=%s\ncategory=%s\nstep=%d","frames":[{"name":"make_%[2]s","filename":"/home/me/train.py","line":%[4]d}]`,
			b.module, b.category, b.step, b.line))
		segments = append(segments, fmt.Sprintf(`{"device":0,"address":%d,"total_size":%d,"stream":0,"segment_type":"large","segment_pool_id":[0,0],"is_expandable":false,"blocks":[{"size":%[2]d,"requested_size":%[2]d,"state":"active_allocated"}]}`,
			addr, b.size))
		addr += b.size
	}
	return `{"device_traces":[[` + strings.Join(entries, ",") + `]],"segments":[` + strings.Join(segments, ",") + `]}`
}

// twoRuns writes the files of two runs.
func twoRuns(t *testing.T) (before, after string) {
	a := []held{{20 * mib, "parameter", "encoder.0", 1, 10}, {40 * mib, "activation", "encoder.1", 1, 21}, {30 * mib, "workspace", "", 2, 33}}
	b := []held{{20 * mib, "parameter", "encoder.0", 1, 10}, {50 * mib, "activation", "encoder.1", 1, 24}, {24 * mib, "gradient", "head", 2, 40}, {24 * mib, "gradient", "head", 2, 41}}
	for i := range 12 {
		b = append(b, held{20 * mib, "other", fmt.Sprintf("x.%d", i), 2, 50})
	}
	return write(t, "a.json", dump(a...)), write(t, "b.json", dump(b...))
}

const golden = `a.json → b.json

  difference            before    after
    +268 MiB  +297.8 %  90 MiB  358 MiB  peak allocated
    +268 MiB  +297.8 %  90 MiB  358 MiB  peak reserved

  difference           before    after  blocks  category
    +240 MiB      new     0 B  240 MiB  0 → 12  other
     +48 MiB      new     0 B   48 MiB   0 → 2  gradient
     +10 MiB  +25.0 %  40 MiB   50 MiB       1  activation
     -30 MiB     gone  30 MiB      0 B   1 → 0  workspace
1 without a difference, 20 MiB

  difference        before   after  blocks  module
     +48 MiB   new     0 B  48 MiB   0 → 2  head
     +20 MiB   new     0 B  20 MiB   0 → 1  x.0
     +20 MiB   new     0 B  20 MiB   0 → 1  x.1
     +20 MiB   new     0 B  20 MiB   0 → 1  x.10
     +20 MiB   new     0 B  20 MiB   0 → 1  x.11
     +20 MiB   new     0 B  20 MiB   0 → 1  x.2
     +20 MiB   new     0 B  20 MiB   0 → 1  x.3
     +20 MiB   new     0 B  20 MiB   0 → 1  x.4
     +20 MiB   new     0 B  20 MiB   0 → 1  x.5
     +20 MiB   new     0 B  20 MiB   0 → 1  x.6
     -30 MiB  gone  30 MiB     0 B   1 → 0  (none)
4 more differ, +70 MiB together
1 without a difference, 20 MiB

  difference           before    after  blocks  line
    +240 MiB      new     0 B  240 MiB  0 → 12  make_other train.py:50
     +24 MiB      new     0 B   24 MiB   0 → 1  make_gradient train.py:40
     +24 MiB      new     0 B   24 MiB   0 → 1  make_gradient train.py:41
     +10 MiB  +25.0 %  40 MiB   50 MiB       1  make_activation train.py:21 → 24
     -30 MiB     gone  30 MiB      0 B   1 → 0  make_workspace train.py:33
1 without a difference, 20 MiB

  difference            before    after  step
    +268 MiB  +297.8 %  90 MiB  358 MiB  2
     +10 MiB   +16.7 %  60 MiB   70 MiB  1
`

// TestDiff compares the text for two snapshots with a golden file that was reviewed.
func TestDiff(t *testing.T) {
	before, after := twoRuns(t)
	status, stdout, stderr := runs(t, "diff", before, after)
	require.Equal(t, exitOK, status, stderr)
	require.Empty(t, stderr)
	require.Equal(t, golden, stdout)
}

// TestDiffOfEveryForm: JSON, the page and the standard input have the same figures.
func TestDiffOfEveryForm(t *testing.T) {
	before, after := twoRuns(t)
	out := filepath.Join(t.TempDir(), "diff.html")
	status, stdout, stderr := runs(t, "diff", "--json", "-o", out, before, after)
	require.Equal(t, exitOK, status, stderr)
	require.Regexp(t, `diff\.html: \d+ KiB\n$`, stderr)
	var d diff.Diff
	require.NoError(t, json.Unmarshal([]byte(stdout), &d))
	require.EqualValues(t, 268*mib, d.Peaks[0].Bytes())
	require.Len(t, d.Dimensions[1].Rows, 15)
	page, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Contains(t, string(page), "<title>a.json → b.json")
	require.Contains(t, string(page), strings.TrimSpace(stdout))
	status, stdout, stderr = runs(t, "diff", "-o", "-", "--title", "two runs", before, after)
	require.Equal(t, exitOK, status, stderr)
	require.True(t, strings.HasPrefix(stdout, "<!DOCTYPE html>"))
	require.Contains(t, stdout, "<title>two runs")
	require.NotContains(t, stdout, "difference  ")

	text, err := os.ReadFile(after)
	require.NoError(t, err)
	var piped, errs bytes.Buffer
	require.Equal(t, exitOK, Run([]string{"diff", before, "-"}, bytes.NewReader(text), &piped, &errs), errs.String())
	require.Equal(t, strings.ReplaceAll(golden, "b.json", "stdin"), piped.String())
}

// TestDiffOfTheSame: a file does not differ from itself, and two files of one name are
// distinguished.
func TestDiffOfTheSame(t *testing.T) {
	for _, file := range []string{testdata + "mnist_mlp.jsonl.gz", snapshots + "sample_with_stacks.pickle"} {
		status, stdout, stderr := runs(t, "diff", file, file)
		require.Equal(t, exitOK, status, stderr)
		require.Contains(t, stdout, "\nno difference\n")
		require.True(t, strings.HasPrefix(stdout, filepath.Clean(file)+" → "), stdout)
	}
	hostile := write(t, "\x1b[31mname", `{"step":1,"peak":{"modules":[{"name":"\u001b[31mred","bytes":1}]}}`)
	status, stdout, _ := runs(t, "diff", hostile, write(t, "b", `{"step":1,"peak":{"modules":[]}}`))
	require.Equal(t, exitOK, status)
	require.NotContains(t, stdout, "\x1b")
	require.Contains(t, stdout, `\x1b[31mred`)
}

// TestDiffOfBadFiles: the error is a line that names the file, and nothing is written.
func TestDiffOfBadFiles(t *testing.T) {
	good, _ := twoRuns(t)
	dir := t.TempDir()
	for want, args := range map[string][]string{
		"none: no such file":          {good, filepath.Join(dir, "none")},
		"empty: the file is empty":    {write(t, "empty", ""), good},
		"bad: the file begins with":   {good, write(t, "bad", "nonsense")},
		"--max-memory":                {"--max-memory", "10KB", good, good},
		"--max-work":                  {"--max-work", "100", good, good},
		"there is no folder":          {"-o", filepath.Join(dir, "no", "page"), good, good},
		"would be overwritten":        {"-o", good, good, good},
		"both files are the standard": {"-", "-"},
	} {
		status, stdout, stderr := runs(t, append([]string{"diff"}, args...)...)
		require.Equal(t, exitFailed, status, args)
		require.Empty(t, stdout)
		require.Contains(t, stderr, want)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	}
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, list)
}
