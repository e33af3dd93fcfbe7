package structure

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExportedNamesHaveComments checks every file, whatever its build tags: packages, types,
// functions, constants, variables, and methods of exported types. A comment above a group covers
// the group; a comment in a group reaches to the next empty line. staticcheck only checks the form
// of comments.
func TestExportedNamesHaveComments(t *testing.T) {
	files, packages := 0, map[string]bool{}
	contract := deviceMethods(t)
	sources(t, func(name string, text []byte) {
		if path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return
		}
		files++
		f, fset := parse(t, name, text)
		dir := path.Dir(name)
		packages[dir] = packages[dir] || f.Doc != nil
		for _, what := range undocumented(f, fset) {
			_, method, _ := strings.Cut(what, ".")
			if in(dir, "device") && contract[method] {
				continue // the interface says what it does
			}
			if strings.Contains(dir, "/internal/") && method != "" {
				continue // the type's comment may be enough
			}
			t.Errorf("%s: %s has no comment", name, what)
		}
	})
	require.Greater(t, files, 200)
	for dir, ok := range packages {
		if !ok {
			t.Errorf("package %s has no comment", dir)
		}
	}
}

// TestPackagesHaveExamples: the documentation of each package has a program that runs.
func TestPackagesHaveExamples(t *testing.T) {
	for _, p := range public(t) {
		if in(p.short(), "examples") {
			continue
		}
		files, err := filepath.Glob(filepath.Join(root, p.short(), "*_test.go"))
		require.NoError(t, err)
		found := false
		for _, name := range files {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			found = found || regexp.MustCompile(`(?m)^func Example`).Match(text)
		}
		require.True(t, found, "%s has no func Example in its tests", p.short())
	}
}

func TestUndocumented(t *testing.T) {
	f, fset := parse(t, "x.go", []byte("package x\n\nfunc F() {}\n\ntype T struct{}\n\nfunc (*T) M() {}\nfunc (T) m() {}\n\n"+
		"type I interface {\n\tA() // yes\n\n\tB()\n}\n\nconst (\n\tC = 1\n\tD = 2 // yes\n\tE = 3\n)\n\n// V has.\nvar V, W int\n"))
	require.Equal(t, []string{"F", "T", "T.M", "I", "I.B", "C"}, undocumented(f, fset))
}

func parse(t *testing.T, name string, text []byte) (*ast.File, *token.FileSet) {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	require.NoError(t, err)
	return f, fset
}

// deviceMethods returns the methods of package device's interfaces.
func deviceMethods(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	packages := ours(t)
	scope := checked(t, packages[slices.IndexFunc(packages, func(p *listed) bool { return p.short() == "device" })]).Scope()
	for _, name := range scope.Names() {
		if i, ok := scope.Lookup(name).Type().Underlying().(*types.Interface); ok {
			for m := range i.Methods() {
				names[m.Name()] = true
			}
		}
	}
	return names
}

// undocumented returns the exported names of a file without a comment.
func undocumented(f *ast.File, fset *token.FileSet) (names []string) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			switch receiver := receiverOf(d); {
			case d.Doc != nil || !d.Name.IsExported():
			case d.Recv == nil:
				names = append(names, d.Name.Name)
			case ast.IsExported(receiver):
				names = append(names, receiver+"."+d.Name.Name)
			}
		case *ast.GenDecl:
			reach := reach{fset: fset}
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.ValueSpec:
					covered := reach.covers(s, s.Doc != nil || s.Comment != nil)
					for _, n := range s.Names {
						if n.IsExported() && d.Doc == nil && !covered {
							names = append(names, n.Name)
						}
					}
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						if d.Doc == nil && s.Doc == nil {
							names = append(names, s.Name.Name)
						}
						names = append(names, methodsWithout(s, fset)...)
					}
				}
			}
		}
	}
	return names
}

// methodsWithout returns an interface's exported methods without a comment.
func methodsWithout(s *ast.TypeSpec, fset *token.FileSet) (names []string) {
	i, ok := s.Type.(*ast.InterfaceType)
	if !ok {
		return nil
	}
	reach := reach{fset: fset}
	for _, m := range i.Methods.List {
		covered := reach.covers(m, m.Doc != nil || m.Comment != nil)
		for _, n := range m.Names {
			if n.IsExported() && !covered {
				names = append(names, s.Name.Name+"."+n.Name)
			}
		}
	}
	return names
}

// reach is the reach of the last comment in a group: to the next empty line.
type reach struct {
	fset *token.FileSet
	last int // the line of the last node that a comment is about
}

func (r *reach) covers(n ast.Node, commented bool) bool {
	if !commented && (r.last == 0 || r.fset.Position(n.Pos()).Line > r.last+1) {
		return false
	}
	r.last = r.fset.Position(n.End()).Line
	return true
}

// receiverOf is the name of a method's type, and empty for a function.
func receiverOf(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	e := d.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}
