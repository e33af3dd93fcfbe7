package structure

import (
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	span       = regexp.MustCompile("`([^`\n]+)`")
	file       = regexp.MustCompile(`^[\w./-]+\.(go|c|h|cu|sh)$`)
	identifier = regexp.MustCompile(`^(\w+\.)?[A-Za-z_]\w*$`)
	items      = regexp.MustCompile(`\n(\d+\. |- )`)
	paragraphs = regexp.MustCompile(`\n{2,}`)
	step       = regexp.MustCompile(`^(\d+\. |Code: )`)
)

// names counts the names of code on a page, and collects wrong ones.
type names struct {
	files, declarations int
	problems            []string
}

// check checks the code spans of a page. A span with the name of a file must be the path of an
// existing file, from the root. In steps of a walk, and in paragraphs that begin with "Code:", the
// file must declare the identifiers after it: `function`, `type` or `Type.method`.
func (n *names) check(page, text string, declared func(path string) map[string]bool) {
	for _, paragraph := range paragraphs.Split(items.ReplaceAllString(text, "\n\n$1"), -1) {
		strict := step.MatchString(paragraph)
		at := ""
		for _, m := range span.FindAllStringSubmatch(paragraph, -1) {
			switch name := m[1]; {
			case file.MatchString(name):
				at = name
				n.files++
				if declared(name) == nil {
					n.problems = append(n.problems, fmt.Sprintf("%s: there is no file %s", page, name))
				}
			case strict && identifier.MatchString(name):
				n.declarations++
				if at == "" {
					n.problems = append(n.problems, fmt.Sprintf("%s: %s without its file", page, name))
				} else if d := declared(at); d != nil && !d[name] {
					n.problems = append(n.problems, fmt.Sprintf("%s: %s does not declare %s", page, at, name))
				}
			}
		}
	}
}

// declarations returns the declarations of each source file, and nil for a missing file. In C and
// CUDA these are all names before a parenthesis.
func declarations(t *testing.T) func(path string) map[string]bool {
	t.Helper()
	call := regexp.MustCompile(`\b(\w+?)(_##\w+)?\s*\(`) // matmul_##t: a kernel for each type
	known := map[string]map[string]bool{}
	sources(t, func(path string, text []byte) {
		d := map[string]bool{}
		known[path] = d
		if filepath.Ext(path) != ".go" {
			for _, m := range call.FindAllSubmatch(text, -1) {
				d[string(m[1])] = true
			}
			return
		}
		f, _ := parse(t, path, text)
		for _, decl := range f.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				d[strings.TrimPrefix(receiverOf(decl)+"."+decl.Name.Name, ".")] = true
			case *ast.GenDecl:
				for _, s := range decl.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						d[s.Name.Name] = true
					case *ast.ValueSpec:
						for _, n := range s.Names {
							d[n.Name] = true
						}
					}
				}
			}
		}
	})
	return func(path string) map[string]bool {
		if d := known[path]; d != nil {
			return d
		}
		if _, err := os.Stat(filepath.Join(root, path)); err == nil {
			return map[string]bool{} // a script or a text
		}
		return nil
	}
}

// returns counts how often a walk returns to a file that it has left.
func returns(walk string) (n int) {
	seen, at := map[string]bool{}, ""
	for _, m := range span.FindAllStringSubmatch(walk, -1) {
		if !file.MatchString(m[1]) || m[1] == at {
			continue
		}
		if at = m[1]; seen[at] {
			n++
		}
		seen[at] = true
	}
	return n
}

func TestReturns(t *testing.T) {
	require.Equal(t, 0, returns("1. `a.go` `F`: `a.go` `G`, `b.go`"))
	require.Equal(t, 2, returns("1. `a.go` `F`, `b.go` `G`, `a.go` `H`.\n2. `a.go` `F`, `b.go` `G`, `c.go`"))
}

// TestNamesInDocs checks the walks of docs/architecture.md, where each step names a file and
// functions in it, and the pages of docs/decisions.
func TestNamesInDocs(t *testing.T) {
	declared := declarations(t)
	pages, err := filepath.Glob(root + "/docs/decisions/*.md")
	require.NoError(t, err)
	require.Greater(t, len(pages), 10)
	for _, name := range pages {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		var n names
		n.check(filepath.Base(name), string(text), declared)
		for _, p := range n.problems {
			t.Error(p)
		}
		if filepath.Base(name) != "README.md" {
			require.Positive(t, n.files, name)
		}
	}

	text, err := os.ReadFile(root + "/docs/architecture.md")
	require.NoError(t, err)
	_, walks, ok := strings.Cut(string(text), "\n## Eight walks\n")
	require.True(t, ok)
	var all names
	all.check("architecture.md", string(text), declared)
	for _, p := range all.problems {
		t.Error(p)
	}
	walks, _, _ = strings.Cut(walks, "\n## ")
	list := strings.Split(walks, "\n### ")[1:]
	require.Len(t, list, 8)
	for _, w := range list {
		var n names
		n.check("walk", w, declared)
		title, _, _ := strings.Cut(w, "\n")
		require.Greater(t, n.files, 4, title)
		require.Greater(t, n.declarations, 8, title)
		t.Logf("%s: %d files, %d names, %d returns", title, n.files, n.declarations, returns(w))
	}
	for i, title := range []string{"Linear backward", "An Adam step", "A checkpointed block", "A bucket of Parallel"} {
		w, ok := strings.CutPrefix(list[4+i], title+"\n")
		require.True(t, ok, title)
		require.LessOrEqual(t, returns(w), 4, title)
	}

	// A name that is gone is found: every function and every file of the walks is taken away once.
	for _, w := range list {
		for _, m := range span.FindAllStringSubmatch(w, -1) {
			if !file.MatchString(m[1]) && !identifier.MatchString(m[1]) {
				continue
			}
			var n names
			n.check("walk", w, func(path string) map[string]bool {
				if path == m[1] {
					return nil
				}
				without := map[string]bool{}
				for name := range declared(path) {
					without[name] = name != m[1]
				}
				return without
			})
			require.NotEmpty(t, n.problems, m[1])
		}
	}
}
