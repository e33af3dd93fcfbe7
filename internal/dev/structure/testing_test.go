package structure

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTestingPage: docs/testing.md lists every target of the Makefile, every build tag and every variable of the tests,
// and no others.
func TestTestingPage(t *testing.T) {
	page, err := os.ReadFile(root + "/docs/testing.md")
	require.NoError(t, err)
	makefile, err := os.ReadFile(root + "/Makefile")
	require.NoError(t, err)
	words := map[string]bool{}
	for _, m := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(string(page), -1) {
		words[m[1]] = true
	}
	targets := regexp.MustCompile(`(?m)^([a-z0-9-]+):.*##`).FindAllStringSubmatch(string(makefile), -1)
	require.Greater(t, len(targets), 30)
	for _, m := range targets {
		if m[1] != "help" && m[1] != "mnist" && m[1] != "nightly" {
			require.Contains(t, words, m[1], "a target of the Makefile")
		}
	}
	variable := regexp.MustCompile(`CISTERN_[A-Z][A-Z_]*[A-Z]`)
	used, tagged := map[string]bool{}, map[string]bool{}
	require.NoError(t, filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", "dist", "bin"}, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		script := d.Name() == "Makefile" || filepath.Base(filepath.Dir(name)) == ".ci"
		if !script && !slices.Contains([]string{".go", ".c", ".sh"}, filepath.Ext(name)) {
			return nil
		}
		text, err := os.ReadFile(name)
		for _, v := range variable.FindAllString(string(text), -1) {
			used[v] = true
		}
		if m := regexp.MustCompile(`(?m)^//go:build (.*)$`).FindStringSubmatch(string(text)); m != nil {
			for _, tag := range regexp.MustCompile(`\w+`).FindAllString(m[1], -1) {
				tagged[tag] = true
			}
		}
		return err
	}))
	require.Greater(t, len(used), 25)
	for v := range used {
		require.Contains(t, words, v, "a variable")
	}
	for v := range words {
		if variable.MatchString(v) {
			name, _, _ := strings.Cut(v, "=")
			require.True(t, used[name], "nothing reads %s", v)
		}
	}
	for _, own := range []string{"cuda", "invariants", "sanitizer", "emulator", "purego", "race"} {
		require.True(t, tagged[own], own)
		require.Contains(t, words, own, "a build tag")
		delete(tagged, own)
	}
	for _, common := range []string{"amd64", "arm64", "unix", "ignore", "linux", "windows"} {
		delete(tagged, common)
	}
	require.Empty(t, tagged, "build tags that docs/testing.md does not list")
}
