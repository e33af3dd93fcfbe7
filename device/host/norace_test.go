package host

import (
	"embed"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

//go:embed *.go
var sources embed.FS

// hidden lists the files whose functions share memory under locks that the race detector does not
// see.
var hidden = []string{"account.go", "callbacks.go", "capture.go", "kernel.go", "mapping.go", "pins.go", "queue.go", "record.go", "replay.go", "rows.go", "streams.go",
	"table.go", "worker.go"}

// TestHiddenFunctionsAreNorace checks the rules of package race's comment, because the compiler
// checks none of them. A forgotten function would cause a false report only now and then.
func TestHiddenFunctionsAreNorace(t *testing.T) {
	files := token.NewFileSet()
	for _, name := range hidden {
		source, err := sources.ReadFile(name)
		require.NoError(t, err)
		file, err := parser.ParseFile(files, name, source, parser.ParseComments)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			at := files.Position(f.Pos())
			norace := f.Doc != nil && slices.ContainsFunc(f.Doc.List, func(c *ast.Comment) bool {
				return c.Text == "//go:norace"
			})
			assert.True(t, norace, "%s: %s is not go:norace", at, f.Name.Name)
			disabled, enabled := 0, 0
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncLit:
					assert.Fail(t, "a closure is a function without the pragma", "%s", files.Position(n.Pos()))
				case *ast.MapType:
					assert.Fail(t, "the runtime reports accesses to maps", "%s", files.Position(n.Pos()))
				case *ast.CallExpr:
					switch callee(n) {
					case "append", "delete":
						assert.Fail(t, "the runtime reports what these touch", "%s", files.Position(n.Pos()))
					case "race.Disable":
						disabled++
					case "race.Enable":
						enabled++
					}
				}
				return true
			})
			if disabled > 0 && f.Name.Name != "loop" && f.Name.Name != "lock" {
				assert.GreaterOrEqual(t, enabled, disabled, "%s: %s disables more than it enables", at, f.Name.Name)
			}
		}
	}
}

func callee(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			return x.Name + "." + f.Sel.Name
		}
	}
	return ""
}
