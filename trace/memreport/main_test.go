package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	recordings = "../../memcache/testdata/recordings/"
	snapshots  = "../../internal/recording/testdata/"
)

// reports runs the command.
func reports(args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = run(args, &out, &errs)
	return status, out.String(), errs.String()
}

// TestPages: each kind of file becomes a page, with and without other options tried.
func TestPages(t *testing.T) {
	for _, file := range []string{recordings + "mnist_mlp.jsonl.gz", snapshots + "mnist_mlp.pickle.gz", snapshots + "sample_with_stacks.pickle"} {
		out := filepath.Join(t.TempDir(), "page.html")
		status, stdout, stderr := reports("-o", out, file)
		require.Equal(t, exitOK, status, stderr)
		require.Empty(t, stdout)
		require.Contains(t, stderr, "page.html: ")
		page, err := os.ReadFile(out)
		require.NoError(t, err)
		require.True(t, bytes.HasPrefix(page, []byte("<!DOCTYPE html>")))
		require.Contains(t, string(page), "<title>"+filepath.Base(file))
		require.Less(t, len(page), 200_000)
		list, err := os.ReadDir(filepath.Dir(out))
		require.NoError(t, err)
		require.Len(t, list, 1, "no other file is left")
		status, stdout, stderr = reports("-o", "-", "-no-what-if", "-title", "a run", file)
		require.Equal(t, exitOK, status, stderr)
		require.Empty(t, stderr)
		require.Contains(t, stdout, "<title>a run")
	}
}

// TestMistakes: each says what is wrong, and leaves no file behind.
func TestMistakes(t *testing.T) {
	good := recordings + "mnist_mlp.jsonl.gz"
	for _, args := range [][]string{
		{}, {good, good}, {"-what-if", "expandable_segments:Maybe", good}, {"-what-if", "", "-no-what-if", good}, {"-max-entries", "-1", good}, {"-unknown", good},
	} {
		status, _, stderr := reports(args...)
		require.Equal(t, exitUsage, status, args)
		require.Contains(t, stderr, "usage: memreport", args)
	}
	status, _, stderr := reports("-help")
	require.Equal(t, exitOK, status)
	require.Contains(t, stderr, "usage: memreport")

	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for file, want := range map[string]string{empty: "truncated", filepath.Join(dir, "missing"): "no such file"} {
		status, _, stderr := reports("-o", filepath.Join(dir, "page.html"), file)
		require.Equal(t, exitFailed, status)
		require.Contains(t, stderr, want)
		require.True(t, strings.HasPrefix(stderr, "memreport: "), stderr)
	}
	status, _, stderr = reports("-o", filepath.Join(dir, "page.html"), "-max-entries", "1000", good)
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, "more than 1000 entries")
	status, _, stderr = reports("-o", filepath.Join(dir, "none", "page.html"), good)
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, "none")
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, list, 1)
}
