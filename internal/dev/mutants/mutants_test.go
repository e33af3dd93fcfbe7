package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// module writes a module of one function, its test, and a list of mutants.
func module(t *testing.T, list string) string {
	return moduleOf(t, "package sum\n\nfunc Sum(a, b int) int {\n\tif a == 0 {\n\t\treturn b\n\t}\n\treturn a + b\n}\n", list)
}

func moduleOf(t *testing.T, code, list string) string {
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":                   "module example.com/m\n\ngo 1.26\n",
		"sum/sum.go":               code,
		"sum/sum_test.go":          "package sum\n\nimport \"testing\"\n\nfunc TestSum(t *testing.T) {\n\tif Sum(1, 2) != 3 || Sum(0, 2) != 2 {\n\t\tt.Fatal()\n\t}\n}\n",
		"sum/testdata/mutants.txt": list,
	} {
		name = filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	return root
}

const list = `# four mutants

mutant: minus
func: Sum
run: TestSum
at: a + b
to: a - b

mutant: the short way is dropped
func: Sum
at: if a == 0 {
drop

mutant: no program
func: Sum
at: return a + b
drop

mutant: no test
func: Sum
run: TestNothing
at: return a + b
to: return a
`

func TestTry(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the go command")
	}
	root := module(t, list)
	mutants, err := readList(root, "./sum")
	require.NoError(t, err)
	require.NoError(t, clean(t.Context(), root, mutants))
	verdicts := tryAll(t.Context(), root, mutants, 2, time.Minute)
	require.Len(t, verdicts, 4)
	require.Equal(t, "killed", verdicts[0].word())
	require.Equal(t, "TestSum", verdicts[0].by)
	require.Equal(t, "SURVIVES", verdicts[1].word(), "the long way gives the same")
	require.Equal(t, "ERROR", verdicts[2].word())
	require.ErrorContains(t, verdicts[2].err, "does not compile")
	require.ErrorContains(t, verdicts[3].err, `no test of ./sum matches -run "TestNothing"`)
	require.ErrorContains(t, report(verdicts), "3 of 4 were not killed")
	require.NoError(t, report(verdicts[:1]))
	source, err := os.ReadFile(filepath.Join(root, "sum/sum.go"))
	require.NoError(t, err)
	require.Contains(t, string(source), "return a + b")
}

// TestCleanFails: mutants of a tree whose tests already fail must not count as killed.
func TestCleanFails(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the go command")
	}
	root := module(t, list)
	require.NoError(t, os.WriteFile(filepath.Join(root, "sum/fail_test.go"), []byte("package sum\n\nimport \"testing\"\n\nfunc TestFail(t *testing.T) { t.Fatal() }\n"), 0o600))
	mutants, err := readList(root, "./sum")
	require.NoError(t, err)
	require.ErrorContains(t, clean(t.Context(), root, mutants), "TestFail")
}

func TestDraw(t *testing.T) {
	mutants, err := readList(module(t, list), "./sum")
	require.NoError(t, err)
	require.Equal(t, mutants, draw(mutants, 0, ""))
	require.Equal(t, mutants, draw(mutants, 9, ""))
	drawn := map[string]bool{}
	for _, seed := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		two := draw(mutants, 2, seed)
		require.Equal(t, two, draw(mutants, 2, seed))
		require.Subset(t, mutants, two)
		require.Less(t, two[0].line, two[1].line)
		drawn[two[0].name+two[1].name] = true
	}
	require.Greater(t, len(drawn), 2)
}

// TestNamesOfTests: a test counts if it is in the build and the part of run before a slash matches its name.
func TestNamesOfTests(t *testing.T) {
	root := module(t, list)
	only := "//go:build race || extra\n\npackage sum\n\nimport \"testing\"\n\nfunc FuzzRace(f *testing.F) {}\n"
	require.NoError(t, os.WriteFile(filepath.Join(root, "sum/race_test.go"), []byte(only), 0o600))
	for _, m := range []mutant{{}, {run: "TestSum"}, {run: "^Test(Sum|Other)$/part"}, {run: "FuzzRace", race: true}, {run: "FuzzRace", tags: "extra"}} {
		m.pkg, m.test = "./sum", "./sum"
		require.NoError(t, testNames{}.find(root, &m), m.run)
	}
	for _, m := range []mutant{{run: "TestSums"}, {run: "testing"}, {run: "FuzzRace"}, {test: "./nowhere"}} {
		m.pkg = "./sum"
		if m.test == "" {
			m.test = "./sum"
		}
		require.ErrorContains(t, testNames{}.find(root, &m), "no test of "+m.test, m.run)
	}
	require.ErrorContains(t, testNames{}.find(root, &mutant{pkg: "./sum", test: "./sum", run: "("}), "error parsing regexp")
}

// TestPackagesOfOtherModules: lists in a folder with a go.mod of its own, such as dist, are not
// those of the module.
func TestPackagesOfOtherModules(t *testing.T) {
	root := module(t, list)
	require.NoError(t, os.MkdirAll(filepath.Join(root, "dist/sum"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(root, "dist/go.mod"), []byte("module dist\n"), 0o600))
	require.NoError(t, os.CopyFS(filepath.Join(root, "dist/sum"), os.DirFS(filepath.Join(root, "sum"))))
	packages, err := packagesWithLists(root)
	require.NoError(t, err)
	require.Equal(t, []string{"sum"}, packages)
}
