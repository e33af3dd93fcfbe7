package main

import (
	"go/format"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestListErrors(t *testing.T) {
	const head = "mutant: a\nfunc: Sum\n"
	for text, want := range map[string]string{
		"# " + strings.Repeat("a", 1<<16):                 "token too long",
		"mutant: a\nat: x\ndrop\n":                        "needs a func and an edit",
		head:                                              "needs a func and an edit",
		head + "at: x\n":                                  "changes nothing",
		head + "at: x\nto: x\n":                           "changes nothing",
		head + "at:\nto: x\n":                             "changes nothing",
		head + "to: x\n":                                  "before a change",
		head + "files: sum.go\n":                          "before a change",
		head + "at: x\ndrop\nto: y\n":                     `"to" after "drop"`,
		head + "at: x\nto: y\ninstead: z\n":               `"instead" after "to"`,
		head + "at: x\ndrop: all\n":                       `"drop" after "at"`,
		head + "at: x\nat: y\nat: z\ndrop\n":              "more than two lines",
		"func: Sum\n":                                     "outside of a mutant",
		head + "killer: me\n":                             "want race or test",
		"mutant:\n":                                       "needs a name",
		strings.Repeat(head+"at: x\ndrop\n", 2):           "on line 1",
		head + "at: x\nto: y\nat: x\nrun: A\n" + "drop\n": `"drop" after "run"`,
	} {
		_, err := readList(module(t, text), "./sum")
		require.ErrorContains(t, err, want, text)
	}
	_, err := readList(t.TempDir(), "./sum")
	require.ErrorIs(t, err, os.ErrNotExist)
}

const code = `package sum

type table[K comparable] struct{ rows map[K]int }

func (t *table[K]) put(k K) {
	if t.rows == nil {
		t.rows = map[K]int{}
	}
	t.rows[k]++
	defer done()
}

func (t *table[K]) putAll(list []K) {
	for _, k := range list {
		t.put(k)
	}
	t.put(list[0])
	done()
}

func done() {
	switch {
	case true:
		println()
	}
}
`

// TestAnchors: the change and position of each form of an edit.
func TestAnchors(t *testing.T) {
	for _, c := range []struct{ mutant, old, new string }{
		{"func: table.put\nat: ++\nto: --\n", "t.rows[k]++", "t.rows[k]--"},
		{"func: table.put\nat: if t.rows == nil {\ndrop\n", "\tif t.rows == nil {\n\t\tt.rows = map[K]int{}\n\t}\n", ""},
		{"func: table.put\nat: t.rows = map\ndrop\n", "\t\tt.rows = map[K]int{}\n", ""},
		{"func: table.put\nat: t.rows[k]++\nat: defer done()\nto: defer done()\nto: t.rows[k]++\n", "\tt.rows[k]++\n\tdefer done()\n", "\tdefer done()\n\tt.rows[k]++\n"},
		{"func: table.putAll\nat: for _\ninstead: println()\ninstead: println(1)\n", "\tfor _, k := range list {\n\t\tt.put(k)\n\t}\n", "\tprintln()\n\tprintln(1)\n"},
		{"func: table.putAll\nat: t.put(list[0])\nat: done()\ndrop\n", "\tt.put(list[0])\n", ""},
		{"func: table.putAll\nat: t.put(list[0])\ndrop\nat: k := range list\nto: k := range list[1:]\n", "range list {\n\t\tt.put(k)\n\t}\n\tt.put(list[0])\n", "range list[1:] {\n\t\tt.put(k)\n\t}\n"},
		{"func: done\nat: println()\ndrop\n", "\t\tprintln()\n", ""},
		// The function has another name, another type, or the text is in another function.
		{"func: table.add\nat: ++\nto: --\n", "t.rows[k]++", "t.rows[k]--"},
		{"func: put\nat: ++\nto: --\n", "t.rows[k]++", "t.rows[k]--"},
		{"func: table.put\nat: println()\ndrop\n", "\t\tprintln()\n", ""},
	} {
		root := moduleOf(t, code, "mutant: a\n"+c.mutant)
		mutants, err := readList(root, "./sum")
		require.NoError(t, err, c.mutant)
		require.NoError(t, fit(root, mutants), c.mutant)
		got, err := mutants[0].apply(root)
		require.NoError(t, err, c.mutant)
		require.Equal(t, filepath.Join(root, "sum/sum.go"), got.file)
		require.Equal(t, 1, strings.Count(code, c.old), c.mutant)
		require.Equal(t, formatted(t, strings.Replace(code, c.old, c.new, 1)), formatted(t, got.text), c.mutant)
	}
}

func formatted(t *testing.T, text string) string {
	b, err := format.Source([]byte(text))
	require.NoError(t, err, text)
	var lines []string
	for line := range strings.Lines(string(b)) {
		if strings.TrimSpace(line) != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

func TestStale(t *testing.T) {
	for text, want := range map[string]string{
		"func: table.put\nat: nothing\ndrop\n":                           `"nothing", is not in it`,
		"func: table.put\nat: t.rows\ndrop\n":                            "is in it 3 times",
		"func: gone\nat: gone\ndrop\n":                                   "no function gone, and no other one has the text",
		"func: gone\nat: done()\ndrop\n":                                 "2 others have it",
		"func: table.put\nat: }\nat: t.rows[k]++\ndrop\n":                "no statement begins",
		"func: table.put\nat: rows[k]++\ndrop\nat: t.rows[k]\nto: t.x\n": "overlap",
		"func: table.put\nin: nowhere\nat: ++\ndrop\n":                   "no function table.put",
		"func: table.put\ntest: ./other\nat: ++\ndrop\n":                 "no test of ./other",
	} {
		root := moduleOf(t, code, "mutant: a\n"+text)
		mutants, err := readList(root, "./sum")
		require.NoError(t, err, text)
		err = fit(root, mutants)
		require.ErrorContains(t, err, want, text)
		require.ErrorContains(t, err, "mutants.txt:1:", text)
		var b strings.Builder
		warn(&b, err)
		require.Contains(t, b.String(), "warning: stale mutants")
		require.Contains(t, b.String(), want)
	}
	var b strings.Builder
	warn(&b, nil)
	require.Empty(t, b.String())
}

// TestBuilds: a function that exists in two files is searched in the one of the build.
func TestBuilds(t *testing.T) {
	root := moduleOf(t, "//go:build !extra\n\npackage sum\n\nfunc F() int { return 1 }\n", "mutant: a\nfunc: F\nat: 1\nto: 2\n\nmutant: b\nfunc: F\ntags: extra\nat: 3\nto: 4\n")
	require.NoError(t, os.WriteFile(filepath.Join(root, "sum/extra.go"), []byte("//go:build extra\n\npackage sum\n\nfunc F() int { return 3 }\n"), 0o600))
	mutants, err := readList(root, "./sum")
	require.NoError(t, err)
	for i, file := range []string{"sum.go", "extra.go"} {
		got, err := mutants[i].apply(root)
		require.NoError(t, err)
		require.Equal(t, file, filepath.Base(got.file))
	}
}
