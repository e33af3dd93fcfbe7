package structure

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// licences are recognised by these sentences, in this order.
var licences = []struct{ name, sentence string }{
	{"MIT and Apache-2.0", "covered by two different licenses: MIT and Apache"},
	{"MPL-2.0", "Mozilla Public License, version 2.0"},
	{"Apache-2.0", "Apache License Version 2.0, January 2004"},
	{"MIT", "Permission is hereby granted, free of charge, to any person obtaining a copy"},
	{"BSD-3-Clause", "Neither the name"},
	{"BSD-2-Clause", "Redistributions in binary form must reproduce the above copyright notice"},
}

// licenceOf reads the licence of a module in its folder.
func licenceOf(t *testing.T, dir string) string {
	t.Helper()
	var text strings.Builder
	for _, name := range []string{"LICEN[CS]E*", "COPYING*"} {
		files, err := filepath.Glob(filepath.Join(dir, name))
		require.NoError(t, err)
		for _, f := range files {
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			text.Write(b)
		}
	}
	words := strings.Join(strings.Fields(text.String()), " ")
	for _, l := range licences {
		if strings.Contains(words, l.sentence) {
			return l.name
		}
	}
	return ""
}

// TestNotices compares the table in THIRD_PARTY_NOTICES.md with go.mod and with the licences in the module cache.
func TestNotices(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the table is of amd64, whose assembly needs more modules")
	}
	if tags != "" {
		t.Skip("the table is that of builds without tags")
	}
	packages, err := list()
	require.NoError(t, err)
	byPath := map[string]*listed{}
	for _, p := range packages {
		byPath[p.ImportPath] = p
	}
	use := map[string]string{} // of modules
	var mark func(p *listed, as string, seen map[string]bool)
	mark = func(p *listed, as string, seen map[string]bool) {
		if p == nil || seen[p.ImportPath] {
			return
		}
		seen[p.ImportPath] = true
		if p.Module != nil && use[p.Module.Path] != "library" {
			use[p.Module.Path] = as
		}
		for _, path := range p.Imports {
			mark(byPath[path], as, seen)
		}
	}
	inExample, inCommand, inLibrary := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, p := range packages {
		switch {
		case in(p.short(), "examples"):
			mark(p, "example", inExample)
		case p.short() == command, in(p.short(), "internal/cli"):
			mark(p, "command", inCommand)
		case p.ours() && layer(p.short()) >= 0 || in(p.short(), "trace"):
			mark(p, "library", inLibrary)
		}
	}

	mod, err := os.ReadFile(root + "/go.mod")
	require.NoError(t, err)
	args := []string{"mod", "download", "-json"} // also of what only other builds need
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) v`).FindAllSubmatch(mod, -1) {
		args = append(args, string(m[1]))
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	out, err := cmd.Output()
	require.NoError(t, err)
	var table strings.Builder
	table.WriteString("<!-- modules -->\n| module | licence | used by |\n|---|---|---|\n")
	for modules := json.NewDecoder(bytes.NewReader(out)); modules.More(); {
		var m struct{ Path, Dir string }
		require.NoError(t, modules.Decode(&m))
		licence := licenceOf(t, m.Dir)
		require.NotEmpty(t, licence, "the licence of %s in %s is none that is known here", m.Path, m.Dir)
		as := use[m.Path]
		if as == "" {
			as = "cuda or tests"
		}
		fmt.Fprintf(&table, "| %s | %s | %s |\n", m.Path, licence, as)
	}
	table.WriteString("<!-- end -->")

	file := root + "/THIRD_PARTY_NOTICES.md"
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	marks := regexp.MustCompile(`(?s)<!-- modules -->.*<!-- end -->`)
	if *update {
		text = marks.ReplaceAllLiteral(text, []byte(table.String()))
		require.NoError(t, os.WriteFile(file, text, 0o644))
	}
	require.Equal(t, string(marks.Find(text)), table.String(), "go test ./internal/dev/structure -update writes the table")
}
