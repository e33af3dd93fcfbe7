//go:build unix

package output

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
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

// TestFiles: a pipe is written to and stays. The mode is that of the replaced file, or of any new
// file. Another name of the old file keeps the old contents.
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

	target, hard := filepath.Join(dir, "target"), filepath.Join(dir, "hard")
	require.NoError(t, os.WriteFile(target, []byte("old"), 0o640))
	require.NoError(t, os.Link(target, hard))
	require.NoError(t, Write(target, text("new")))
	require.Equal(t, "new", contents(t, target))
	require.Equal(t, "old", contents(t, hard))
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

func contents(t *testing.T, name string) string {
	got, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(got)
}

// TestRefused: no way of writing follows links or replaces anything but regular files.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	require.NoError(t, os.WriteFile("file", []byte("old"), 0o600))
	require.NoError(t, os.Mkdir("folder", 0o700))
	for link, to := range map[string]string{"link": "file", "dangling": "none", "loop": "loop", "to folder": "folder"} {
		require.NoError(t, os.Symlink(to, link))
	}
	for name, want := range map[string]string{
		"link": "a symbolic link, which is not followed", "dangling": "a symbolic link", "loop": "a symbolic link",
		"to folder": "it is a directory", "folder": "it is a directory", "none/file": "there is no folder none",
		"file/x": "there is no folder file", strings.Repeat("x", 300): "too long", "/proc/new": "/proc/",
	} {
		before := names(t, dir)
		require.ErrorContains(t, Check(name), want)
		require.ErrorContains(t, Write(name, text("new")), want)
		for _, appends := range []bool{false, true} {
			f, err := Stream(name, appends)
			require.ErrorContains(t, err, want)
			require.Nil(t, f)
		}
		require.Equal(t, before, names(t, dir))
		require.Equal(t, "old", contents(t, "file"))
	}
	to, err := os.Readlink("link")
	require.NoError(t, err)
	require.Equal(t, "file", to)
}

// TestStandardOutput: a link to the standard output is written to at its current offset, and stays.
// The file that it leads to is not replaced.
func TestStandardOutput(t *testing.T) {
	t.Chdir(t.TempDir())
	old := os.Stdout
	defer func() { os.Stdout = old }()
	var err error
	os.Stdout, err = os.Create("out")
	require.NoError(t, err)
	defer os.Stdout.Close()
	require.NoError(t, os.Symlink("out", "stdout"))
	fmt.Print("first ")
	require.NoError(t, Check("stdout"))
	require.NoError(t, Write("stdout", text("second ")))
	f, err := Stream("stdout", false)
	require.NoError(t, err)
	require.NoError(t, text("third ")(f))
	require.NoError(t, f.Close())
	fmt.Print("fourth")
	require.True(t, IsStandard("stdout"))
	require.False(t, IsStandard("out"))
	require.False(t, IsStandard("none"))
	require.Equal(t, "first second third fourth", contents(t, "out"))
	require.Equal(t, []string{"out", "stdout"}, names(t, "."))
	require.ErrorContains(t, Check("out"), "out is the standard output")
}

// TestStream: a stream exists from its start. It replaces or extends a file, under the file's
// permissions, and two writers have separate files.
func TestStream(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	put := func(f io.WriteCloser, s string) {
		t.Helper()
		require.NoError(t, text(s)(f))
	}
	require.NoError(t, os.WriteFile(name, []byte("before"), 0o600))
	first, err := Stream(name, false)
	require.NoError(t, err)
	put(first, "first")
	require.Equal(t, "first", contents(t, name))
	second, err := Stream(name, false)
	require.NoError(t, err)
	put(second, "second")
	put(first, "first")
	require.NoError(t, first.Close())
	require.NoError(t, second.Close())
	require.Equal(t, "second", contents(t, name))
	third, err := Stream(name, true)
	require.NoError(t, err)
	put(third, ", third")
	require.NoError(t, third.Close())
	require.Equal(t, "second, third", contents(t, name))
	info, err := os.Stat(name)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())

	old, err := os.Stat(name)
	require.NoError(t, err)
	require.NoError(t, Write(name, text("other")))
	_, err = reopen(name, old)
	require.ErrorContains(t, err, "replaced meanwhile")
	null, err := Stream(os.DevNull, false)
	require.NoError(t, err)
	require.NoError(t, null.Close())
}

// TestSame: two names are one file if the file system reports so, or would once the file exists.
func TestSame(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	require.NoError(t, os.Mkdir("folder", 0o700))
	require.NoError(t, os.Symlink("folder", "link"))
	require.NoError(t, os.WriteFile("file", nil, 0o600))
	require.NoError(t, os.Link("file", "hard"))
	for _, pair := range [][2]string{
		{"a", "./a"}, {"a", filepath.Join(dir, "a")}, {"link/a", "folder/a"}, {"folder/../a", "a"}, {"file", "hard"}, {"file", "link/../file"},
	} {
		require.True(t, Same(pair[0], pair[1]), pair)
		require.True(t, Same(pair[1], pair[0]), pair)
	}
	for _, pair := range [][2]string{{"a", "b"}, {"a", "file"}, {"a", "folder/a"}, {"file", "folder"}, {"none/a", "none/a/a"}, {"/dev/null", "/dev/null"}} {
		require.False(t, Same(pair[0], pair[1]), pair)
		require.False(t, Same(pair[1], pair[0]), pair)
	}
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

// TestFailures: after an error the earlier file is unchanged, and no other file is left.
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
	require.Equal(t, "before", contents(t, name))
	require.Equal(t, []string{"file"}, names(t, dir))
	require.Error(t, Write(filepath.Join(dir, "none", "file"), text("")))
	require.Error(t, Write(dir, text("")))
	err := Write("/dev/full", text("x"))
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NotContains(t, err.Error(), "\n")
}

// TestWriters: after several writers of one name, the file is that of one of them.
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

// TestFolderWithoutFlush: a file system need not flush folders.
func TestFolderWithoutFlush(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("has no /proc")
	}
	require.NoError(t, syncFolder("/proc"))
}

// TestCheck: an input is recognised under every name of it.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	require.NoError(t, os.WriteFile("in", []byte("x"), 0o600))
	require.NoError(t, os.WriteFile("other", []byte("x"), 0o600))
	require.NoError(t, os.Symlink("in", "link"))
	require.NoError(t, os.Link("in", "hard"))
	for _, name := range []string{"in", "./in", "link", "hard", filepath.Join(dir, "in")} {
		require.ErrorContains(t, Check(name, "other", "in"), name+" is the input in, which would be overwritten")
		if name != "link" {
			require.NoError(t, Check(name, "other"))
		}
	}
	require.Len(t, names(t, dir), 4, "nothing is left")
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
