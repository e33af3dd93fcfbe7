package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckerRefusesWhatTheCompilerRefuses(t *testing.T) {
	root, err := moduleRoot(t.Context())
	require.NoError(t, err)
	c, err := newChecker(t.Context(), root, "", "./internal/dev/mutants")
	require.NoError(t, err)
	source := filepath.Join(root, "internal/dev/mutants/list.go")
	text, err := os.ReadFile(source)
	require.NoError(t, err)
	require.NoError(t, c.check(source, string(text)))
	for wrong, want := range map[string]string{
		"\nfunc unused() { x := 1 }\n":                          "declared and not used",
		"\nfunc missing() int { return nowhere() }\n":           "undefined",
		"\nfunc report() {}\n":                                  "declaration of report",
		"\nvar _ = (*mutant).apply(nil)\n":                      "not enough arguments",
		"\nfunc end() int { if true { return 1 } }\n":           "missing return",
		"\nfunc syntax() {\n":                                   "expected",
		"\nfunc wrong() { var i int = \"a\"; _ = i }\n":         "cannot use",
		"\nfunc other() { _ = (&checker{}).check(nil, nil) }\n": "cannot use",
	} {
		require.ErrorContains(t, c.check(source, string(text)+wrong), want)
	}
	unused := strings.Replace(string(text), "import (\n", "import (\n\t\"math\"\n", 1)
	require.ErrorContains(t, c.check(source, unused), `"math" imported and not used`)
	require.ErrorContains(t, c.check(filepath.Join(root, "internal/dev/mutants/nowhere.go"), string(text)), "not in this build")
}

func TestCompileNamesAllThatAreNoPrograms(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the go command")
	}
	root := module(t, list)
	mutants, err := readList(root, "./sum")
	require.NoError(t, err)
	err = compile(t.Context(), root, mutants)
	require.ErrorContains(t, err, `"no program": `)
	require.NotContains(t, err.Error(), "minus")
	mutants[0].edits[0].to, mutants[1].edits[0].at = "a - c", "nothing"
	err = compile(t.Context(), root, mutants)
	require.ErrorContains(t, err, "minus")
	require.ErrorContains(t, err, "the short way is dropped")
}
