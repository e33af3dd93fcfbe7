package structure

import (
	"go/ast"
	"go/token"
	"go/types"
	"path"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
)

// dtypeTables lists the files that may distinguish dtypes: all other files use their tables.
var dtypeTables = map[string]bool{"tensor/dtype.go": true, "tensor/backend/dtype.go": true}

// rooms are tensor and its backends.
var rooms = map[string]bool{"tensor": true, "backend": true, "hostop": true, "gpuop": true, "upcast": true, "plan": true}

// TestOperationsAreData: tensor and its backends have no files for a backend or a dtype, and
// compare no dtype with a constant outside of the tables. So a new dtype is a row, and an operation
// without a kernel for it is an error. A backend has four methods.
func TestOperationsAreData(t *testing.T) {
	ofOneBackend := regexp.MustCompile(`^(host|gpu|wide)_`)
	seen := map[string]bool{}
	for _, p := range ours(t) {
		room := path.Base(p.short())
		if !in(p.short(), "tensor") || !rooms[room] {
			continue
		}
		seen[p.short()] = true
		info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Types: map[ast.Expr]types.TypeAndValue{}, Scopes: map[ast.Node]*types.Scope{}}
		pkg, fset := check(t, p, info)
		if room == "backend" {
			iface := pkg.Scope().Lookup("Backend").Type().Underlying().(*types.Interface)
			assert.Equal(t, 4, iface.NumMethods(), "methods of a backend")
		}
		for n := range info.Scopes {
			f, ok := n.(*ast.File)
			if !ok {
				continue
			}
			name := path.Join(p.short(), filepath.Base(fset.Position(f.Pos()).Filename))
			assert.NotRegexp(t, ofOneBackend, path.Base(name))
			if dtypeTables[name] {
				continue
			}
			constant := func(e ast.Expr) bool { return isDtypeConstant(info, e) }
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.BinaryExpr:
					if (n.Op == token.EQL || n.Op == token.NEQ) && (constant(n.X) || constant(n.Y)) {
						t.Errorf("%v compares a dtype outside of its table", fset.Position(n.Pos()))
					}
				case *ast.CaseClause:
					for _, e := range n.List {
						if constant(e) {
							t.Errorf("%v switches on a dtype outside of its table", fset.Position(e.Pos()))
						}
					}
				}
				return true
			})
		}
	}
	assert.Len(t, seen, len(rooms))
}

// isDtypeConstant reports whether e names one of the dtypes. The constant for an operand without a
// dtype does not count.
func isDtypeConstant(info *types.Info, e ast.Expr) bool {
	named, ok := types.Unalias(info.Types[e].Type).(*types.Named)
	if !ok || named.Obj().Name() != "Dtype" {
		return false
	}
	var id *ast.Ident
	switch e := e.(type) {
	case *ast.Ident:
		id = e
	case *ast.SelectorExpr:
		id = e.Sel
	default:
		return false
	}
	o := info.Uses[id]
	return o != nil && o.Pkg() != nil && o.Parent() == o.Pkg().Scope() && o.Name() != "NoDtype"
}
