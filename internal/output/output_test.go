//go:build unix

package output

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

// TestFiles: a pipe is written to and stays, a link stays a link, and the mode is that of the file that
// is replaced, or of any other new file.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	read := make(chan string)
	go func() {
		got, _ := os.ReadFile(pipe)
		read <- string(got)
	}()
	require.NoError(t, Write(pipe, text("through")))
	require.Equal(t, "through", <-read)
	info, err := os.Lstat(pipe)
	require.NoError(t, err)
	require.Equal(t, os.ModeNamedPipe, info.Mode().Type())

	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	require.NoError(t, os.WriteFile(target, []byte("old"), 0o640))
	require.NoError(t, os.Symlink(target, link))
	require.NoError(t, Write(link, text("new")))
	info, err = os.Lstat(link)
	require.NoError(t, err)
	require.Equal(t, os.ModeSymlink, info.Mode().Type())
	got, err := os.ReadFile(target)
	require.NoError(t, err)
	require.Equal(t, "new", string(got))
	info, err = os.Stat(target)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode())

	old := syscall.Umask(0o027)
	defer syscall.Umask(old)
	fresh := filepath.Join(dir, "fresh")
	require.NoError(t, Write(fresh, text("")))
	info, err = os.Stat(fresh)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode())
	require.Len(t, names(t, dir), 4, "nothing else is left")
}

func names(t *testing.T, dir string) []string {
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// TestFailures: after an error the earlier file is what it was, and no other file is left.
func TestFailures(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "file")
	require.NoError(t, Write(name, text("before")))
	broken := errors.New("broken")
	require.ErrorIs(t, Write(name, func(w io.Writer) error {
		_, _ = io.WriteString(w, strings.Repeat("half", 10_000))
		require.Len(t, names(t, dir), 2, "it is written beside")
		return broken
	}), broken)
	got, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "before", string(got))
	require.Equal(t, []string{"file"}, names(t, dir))
	require.Error(t, Write(filepath.Join(dir, "none", "file"), text("")))
	require.Error(t, Write(dir, text("")))
	err = Write("/dev/full", text("x"))
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NotContains(t, err.Error(), "\n")
}

// TestWriters: of several writers of one name, the file is that of one of them.
func TestWriters(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 20 {
				_ = Write(name, func(w io.Writer) error {
					for range 1000 {
						fmt.Fprintln(w, "line of writer", i)
					}
					return nil
				})
			}
		})
	}
	wg.Wait()
	got, err := os.ReadFile(name)
	require.NoError(t, err)
	first, _, _ := strings.Cut(string(got), "\n")
	require.Equal(t, strings.Repeat(first+"\n", 1000), string(got))
}

// TestCheck: an input is known under every name that leads to it.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	require.NoError(t, os.WriteFile("in", []byte("x"), 0o600))
	require.NoError(t, os.WriteFile("other", []byte("x"), 0o600))
	require.NoError(t, os.Symlink("in", "link"))
	require.NoError(t, os.Link("in", "hard"))
	for _, name := range []string{"in", "./in", "link", "hard", filepath.Join(dir, "in")} {
		require.ErrorContains(t, Check(name, "other", "in"), name+" is the input in, which would be overwritten")
		require.NoError(t, Check(name, "other"))
	}
	require.NoError(t, Check("new", "in"))
	require.NoError(t, Check("", "in"))
	require.NoError(t, Check("-", "-"))
	require.NoError(t, Check("/dev/null", "/dev/null"), "which has nothing to lose")
	stdin := os.Stdin
	defer func() { os.Stdin = stdin }()
	var err error
	os.Stdin, err = os.Open("in")
	require.NoError(t, err)
	defer os.Stdin.Close()
	require.ErrorContains(t, Check("hard", "-"), "hard is the input -")
}
