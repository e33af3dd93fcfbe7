package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/trace/ranks"
)

// TestParallelCommand: files of two ranks become a table, a page and figures.
func TestParallelCommand(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(name, []byte(text), 0o666))
		return name
	}
	zero := write("0", `{"step":1,"rank":0,"world_size":2,"collectives":[{"number":1,"time_ns":5000000}]}`+"\n")
	one := write("1", `{"step":1,"rank":1,"world_size":2,"collectives":[{"number":1,"time_ns":2000000}]}`+"\n")
	var out, errs bytes.Buffer
	page, figures := filepath.Join(dir, "page"), filepath.Join(dir, "figures")
	require.Zero(t, run([]string{"-o", page, "-json", figures, "-title", "two", zero, one}, &out, &errs), errs.String())
	require.Contains(t, out.String(), "the straggler is rank 1: it came last to 1 of 1 operations, held the others up for 3ms")
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(html), "<title>two – 2 ranks")
	text, err := os.ReadFile(figures)
	require.NoError(t, err)
	var r ranks.Report
	require.NoError(t, json.Unmarshal(text, &r))
	require.Equal(t, 1, r.Straggler)

	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"-h"}, 0, "usage"},
		{nil, 2, "no file is given"},
		{[]string{"-nonsense"}, 2, "nonsense"},
		{[]string{filepath.Join(dir, "none")}, 1, "none"},
		{[]string{"-o", filepath.Join(dir, "no", "folder"), zero, one}, 1, "folder"},
		{[]string{write("bad", "nonsense\n")}, 1, "line 1"},
	} {
		out.Reset()
		errs.Reset()
		require.Equal(t, c.status, run(c.args, &out, &errs))
		require.Contains(t, errs.String(), c.want)
	}
}
