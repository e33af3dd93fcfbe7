package structure

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sources calls f with each source file of the module, by its path from the root.
func sources(t *testing.T, f func(path string, text []byte)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		path = filepath.ToSlash(path)
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin", "dist"}, path) {
				return filepath.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".go", ".c", ".h", ".cu"}, filepath.Ext(path)) || strings.Contains(path, "testdata/") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		f(path, text)
		return nil
	}))
}

// TestFilesAreShort skips generated files.
func TestFilesAreShort(t *testing.T) {
	files := 0
	sources(t, func(path string, text []byte) {
		files++
		lines := bytes.Count(text, []byte("\n"))
		if lines >= 500 && !bytes.Contains(text[:min(len(text), 400)], []byte("enerated")) {
			t.Errorf("%s has %d lines, 500 or more", path, lines)
		}
	})
	require.Greater(t, files, 400)
}

// TestFilesAreWrittenByOnePackage: code that creates, opens for writing, or renames a file uses
// internal/output, except tests, tools of the developers, and programs that write source files.
func TestFilesAreWrittenByOnePackage(t *testing.T) {
	writes := regexp.MustCompile(`\bos\.(Create|CreateTemp|WriteFile|OpenFile|Rename|Link|Symlink)\(|\brenameio\.`)
	comment := regexp.MustCompile(`(?m)^\s*//.*`)
	found := map[string]bool{}
	sources(t, func(path string, text []byte) {
		folder := filepath.ToSlash(filepath.Dir(path))
		apart := strings.HasSuffix(path, "_test.go") || in(folder, "internal/dev") || in(folder, "tensor/internal/avo") || in(folder, "tensor/internal/gen") || bytes.HasPrefix(text, []byte("//go:build ignore"))
		if !apart && writes.Match(comment.ReplaceAll(text, nil)) {
			found[folder] = true
		}
	})
	require.Equal(t, map[string]bool{"internal/output": true}, found)
}
