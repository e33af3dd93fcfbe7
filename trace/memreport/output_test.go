//go:build unix

package main

import (
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOutputs: what is no regular file is written to and stays, a link stays a link, and the mode is that of any other new file.
func TestOutputs(t *testing.T) {
	const file = recordings + "mnist_mlp.jsonl.gz"
	dir := t.TempDir()
	write := func(name string) {
		t.Helper()
		status, _, stderr := reports("-no-what-if", "-o", name, file)
		require.Equal(t, exitOK, status, stderr)
	}

	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	read := make(chan []byte)
	go func() {
		f, err := os.Open(pipe)
		if err == nil {
			var text []byte
			text, _ = io.ReadAll(f)
			_ = f.Close()
			read <- text
		}
		close(read)
	}()
	write(pipe)
	require.Contains(t, string(<-read), "<!DOCTYPE html>")
	info, err := os.Lstat(pipe)
	require.NoError(t, err)
	require.Equal(t, os.ModeNamedPipe, info.Mode().Type())

	target, link := filepath.Join(dir, "target.html"), filepath.Join(dir, "link.html")
	require.NoError(t, os.WriteFile(target, nil, 0o640))
	require.NoError(t, os.Symlink(target, link))
	write(link)
	info, err = os.Lstat(link)
	require.NoError(t, err)
	require.Equal(t, os.ModeSymlink, info.Mode().Type())
	info, err = os.Stat(target)
	require.NoError(t, err)
	require.Positive(t, info.Size())
	require.Equal(t, os.FileMode(0o640), info.Mode(), "a file that is replaced keeps its mode")

	old := syscall.Umask(0o027)
	defer syscall.Umask(old)
	fresh := filepath.Join(dir, "fresh.html")
	write(fresh)
	info, err = os.Stat(fresh)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode())
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, list, 4, "nothing else is left")
}
