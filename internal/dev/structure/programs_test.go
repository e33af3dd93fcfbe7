package structure

import (
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// blocks returns the programs of a page in a language.
func blocks(t *testing.T, page, language string) (found []string) {
	t.Helper()
	text, err := os.ReadFile(root + "/" + page)
	require.NoError(t, err)
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		if strings.HasPrefix(m[1], map[string]string{"go": "package main", "python": "import "}[language]) {
			found = append(found, m[1])
		}
	}
	return found
}

func TestProgramsRun(t *testing.T) {
	for page, prints := range map[string][]string{
		"README.md":       {"step 200: loss 0.00", "0 3145728 20971520"},
		"docs/pytorch.md": {"step 200: loss 0.00", "epoch 3: loss 0.0"},
	} {
		programs := blocks(t, page, "go")
		require.Len(t, programs, len(prints), page)
		for i, p := range programs {
			require.Contains(t, runProgram(t, p), prints[i], "%s, program %d", page, i)
		}
	}
	programs := blocks(t, "README.md", "go")
	require.Equal(t, programs[0], blocks(t, "docs/pytorch.md", "go")[0], "one program in two pages")
	for i, name := range []string{"xor", "allocator"} {
		text, err := os.ReadFile(root + "/examples/" + name + "/main.go")
		require.NoError(t, err)
		require.True(t, strings.HasSuffix(string(text), programs[i]), "examples/%s is README's program", name)
	}
}

// TestFragmentsAreExamples: the code fragments in the pages are parts of examples, which run.
func TestFragmentsAreExamples(t *testing.T) {
	var examples strings.Builder
	require.NoError(t, filepath.WalkDir(root, func(name string, _ fs.DirEntry, err error) error {
		base := filepath.Base(name)
		if err != nil || !(strings.HasPrefix(base, "example") && strings.HasSuffix(base, "_test.go") || strings.Contains(name, "/examples/") && strings.HasSuffix(base, ".go")) {
			return err
		}
		text, err := os.ReadFile(name)
		examples.WriteString(dedented(string(text)))
		return err
	}))
	pages, err := filepath.Glob(root + "/docs/guide/*.md")
	require.NoError(t, err)
	found := 0
	for _, page := range append(pages, root+"/README.md", root+"/docs/pytorch.md") {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
			if !strings.HasPrefix(m[1], "package main") {
				found++
				if !strings.Contains(examples.String(), dedented(m[1])) {
					t.Errorf("%s: no example has\n%s", page, m[1])
				}
			}
		}
	}
	require.Greater(t, found, 30)
}

// TestPagesAreShort: README has at most 9.5 KB and a guide 8 KB, with lines of at most 120 columns
// outside of tables, pictures and programs' output.
func TestPagesAreShort(t *testing.T) {
	pages, err := filepath.Glob(root + "/docs/guide/*.md")
	require.NoError(t, err)
	for _, page := range append(pages, root+"/README.md") {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		most := 8 << 10
		if strings.HasSuffix(page, "/README.md") {
			most = 9500
		}
		require.LessOrEqual(t, len(text), most, page)
		code := false
		for i, line := range strings.Split(string(text), "\n") {
			code = code != strings.HasPrefix(line, "```")
			if !code && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "![") && utf8.RuneCountInString(line) > 120 {
				t.Errorf("%s:%d has %d columns", page, i+1, utf8.RuneCountInString(line))
			}
		}
	}
}

// dedented is a text without indentation.
func dedented(s string) string {
	return regexp.MustCompile(`(?m)^[ \t]+`).ReplaceAllString(s, "")
}

// runProgram builds the program as if it stood in this module, and returns what it prints.
func runProgram(t *testing.T, program string) string {
	t.Helper()
	here, err := os.Getwd()
	require.NoError(t, err)
	dir := t.TempDir()
	file, overlay := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(here, "program", "main.go"): file}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, replace, 0o600))
	out, err := exec.Command("go", "run", "-overlay", overlay, "./program").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// TestProgramsThatTrainImportLittle: at most three packages of this module, and none of gorgonia's.
// A program that names package autograd too may import four.
func TestProgramsThatTrainImportLittle(t *testing.T) {
	trains := 0
	for _, p := range slices.Concat(blocks(t, "README.md", "go"), blocks(t, "docs/pytorch.md", "go")) {
		f, err := parser.ParseFile(token.NewFileSet(), "main.go", p, parser.ImportsOnly)
		require.NoError(t, err)
		var ours []string
		for _, i := range f.Imports {
			require.NotContains(t, i.Path.Value, "gorgonia.org")
			if strings.HasPrefix(i.Path.Value, `"github.com/cistern-ml/cistern/`) {
				ours = append(ours, i.Path.Value)
			}
		}
		if slices.Contains(ours, `"github.com/cistern-ml/cistern/autograd/nn"`) {
			trains++
			most := 3
			if slices.Contains(ours, `"github.com/cistern-ml/cistern/autograd"`) {
				most = 4
			}
			require.LessOrEqual(t, len(ours), most, "%v", ours)
		}
	}
	require.Equal(t, 3, trains)
}

// TestLinesBesidePyTorch compares the line counts in docs/pytorch.md with the programs.
func TestLinesBesidePyTorch(t *testing.T) {
	goPrograms, pythonPrograms := blocks(t, "docs/pytorch.md", "go"), blocks(t, "docs/pytorch.md", "python")
	require.Len(t, goPrograms, 2)
	require.Len(t, pythonPrograms, 2)
	xor, digits := [2]string{pythonPrograms[0], goPrograms[0]}, [2]string{pythonPrograms[1], goPrograms[1]}
	page, err := os.ReadFile(root + "/docs/pytorch.md")
	require.NoError(t, err)
	for _, row := range []struct {
		name   string
		counts [2]int
		most   float64 // of ours for one of PyTorch's; 0: it is told, and that is all
	}{
		{"exclusive or, without imports and the package clause", [2]int{len(code(xor[0])) - imports(xor[0]), len(code(xor[1])) - imports(xor[1])}, 1.5},
		{"exclusive or, every line", [2]int{len(code(xor[0])), len(code(xor[1]))}, 0},
		{"digits, the loop to the end of the program", [2]int{loop(digits[0]), loop(digits[1])}, 1.5},
	} {
		ratio := float64(row.counts[1]) / float64(row.counts[0])
		require.Contains(t, string(page), fmt.Sprintf("| %s | %d | %d | %.2f |\n", row.name, row.counts[0], row.counts[1], ratio))
		if row.most > 0 {
			require.LessOrEqual(t, ratio, row.most, row.name)
		}
	}
}

// code is the program's lines but empty ones and comments.
func code(program string) (lines []string) {
	for line := range strings.Lines(program) {
		s := strings.TrimSpace(line)
		if s != "" && !strings.HasPrefix(s, "//") && !strings.HasPrefix(s, "#") {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	return lines
}

// imports counts the lines of imports and of a package clause.
func imports(program string) (n int) {
	within := false
	for _, line := range code(program) {
		first, _, _ := strings.Cut(line, " ")
		if within || first == "import" || first == "from" || first == "package" {
			n++
		}
		switch line {
		case "import (":
			within = true
		case ")":
			within = false
		}
	}
	return n
}

// loop counts the lines from the loop over epochs to the end, without the brace of main.
func loop(program string) int {
	lines := code(program)
	from := slices.IndexFunc(lines, func(s string) bool { return strings.Contains(s, "for epoch") })
	if lines[len(lines)-1] == "}" {
		lines = lines[:len(lines)-1]
	}
	return len(lines) - from
}

func TestCounting(t *testing.T) {
	program := "package main\n\nimport (\n\t\"fmt\"\n)\n\n// F.\nfunc main() {\n\tfor epoch := range 3 {\n\t\tfmt.Println()\n\t}\n}\n"
	require.Len(t, code(program), 9)
	require.Equal(t, 4, imports(program))
	require.Equal(t, 3, loop(program))
	require.Equal(t, 2, imports("import a\nfrom b import c\n\n# d\ne()\n"))
}
