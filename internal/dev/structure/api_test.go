package structure

import (
	"fmt"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const apiDir = "testdata/api"

// TestAPI compares testdata/api, a file for each package with every exported name and its type,
// with the code, so that the diff shows a change of a name. Names of parameters are omitted,
// because they do not matter to a caller.
func TestAPI(t *testing.T) {
	var want []string
	for _, p := range public(t) {
		if p.short() == "device/cuda" && len(p.CgoFiles) == 0 {
			want = append(want, apiFile(p)) // it has names in builds with the tag cuda only
			continue
		}
		text := apiOf(checked(t, p))
		want = append(want, apiFile(p))
		file := filepath.Join(apiDir, apiFile(p))
		if *update {
			require.NoError(t, os.MkdirAll(apiDir, 0o755))
			require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		}
		t.Logf("%-20s %s", p.short(), strings.SplitN(text, "\n", 2)[0])
		recorded, err := os.ReadFile(file)
		require.NoError(t, err, "go test ./internal/dev/structure -update writes it")
		require.Equal(t, string(recorded), text, "the exported names of %s: if the change is meant, run go test ./internal/dev/structure -update, and say in CHANGELOG what replaces a name that is gone", p.short())
	}
	files, err := filepath.Glob(filepath.Join(apiDir, "*.txt"))
	require.NoError(t, err)
	for _, file := range files {
		require.Contains(t, want, filepath.Base(file), "there is no such package any more")
	}
}

func apiFile(p *listed) string { return strings.ReplaceAll(p.short(), "/", "_") + ".txt" }

// apiOf returns a line for each exported constant, variable, function, type, method and field of a
// package. Promoted methods and fields belong to the embedded type.
func apiOf(pkg *types.Package) string {
	var lines []string
	names := 0
	line := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	qualify := func(p *types.Package) string {
		if p == pkg {
			return ""
		}
		return p.Name()
	}
	text := func(t types.Type) string { return types.TypeString(unnamed(t), qualify) }
	for _, name := range pkg.Scope().Names() {
		if !pkg.Scope().Lookup(name).Exported() {
			continue
		}
		names++
		switch o := pkg.Scope().Lookup(name).(type) {
		case *types.Const:
			line("const %s %s", name, text(o.Type()))
		case *types.Var:
			line("var %s %s", name, text(o.Type()))
		case *types.Func:
			line("func %s%s%s", name, parametersOf(o.Signature(), text), strings.TrimPrefix(text(o.Type()), "func"))
		case *types.TypeName:
			if o.IsAlias() {
				line("type %s = %s", name, text(types.Unalias(o.Type())))
				continue
			}
			named := o.Type().(*types.Named)
			line("type %s %s", name, kindOf(named, text))
			for m := range named.Methods() {
				if m.Exported() {
					pointer := ""
					if _, ok := m.Signature().Recv().Type().(*types.Pointer); ok {
						pointer = "*"
					}
					line("type %s, method (%s%s) %s%s", name, pointer, name, m.Name(), strings.TrimPrefix(text(m.Type()), "func"))
				}
			}
			switch u := named.Underlying().(type) {
			case *types.Struct:
				for f := range u.Fields() {
					if f.Exported() {
						line("type %s, field %s %s", name, f.Name(), text(f.Type()))
					}
				}
			case *types.Interface:
				for m := range u.ExplicitMethods() {
					if m.Exported() {
						line("type %s, method %s%s", name, m.Name(), strings.TrimPrefix(text(m.Type()), "func"))
					}
				}
			}
		}
	}
	slices.Sort(lines)
	return fmt.Sprintf("%d exported names, %d with methods and fields\n\n%s\n", names, len(lines), strings.Join(lines, "\n"))
}

// parametersOf are a generic function's type parameters.
func parametersOf(s *types.Signature, text func(types.Type) string) string {
	var list []string
	for p := range s.TypeParams().TypeParams() {
		list = append(list, p.Obj().Name()+" "+text(p.Constraint()))
	}
	if len(list) == 0 {
		return ""
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// kindOf returns the underlying type, or only the kind of structs and interfaces, because their
// members have lines of their own.
func kindOf(t *types.Named, text func(types.Type) string) string {
	switch u := t.Underlying().(type) {
	case *types.Struct:
		return "struct"
	case *types.Interface:
		return "interface"
	default:
		return text(u)
	}
}

// unnamed is a type without its parameters' names.
func unnamed(t types.Type) types.Type {
	switch t := t.(type) {
	case *types.Signature:
		tuple := func(vars *types.Tuple) *types.Tuple {
			var list []*types.Var
			for v := range vars.Variables() {
				list = append(list, types.NewParam(0, v.Pkg(), "", unnamed(v.Type())))
			}
			return types.NewTuple(list...)
		}
		return types.NewSignatureType(nil, nil, nil, tuple(t.Params()), tuple(t.Results()), t.Variadic())
	case *types.Pointer:
		return types.NewPointer(unnamed(t.Elem()))
	case *types.Slice:
		return types.NewSlice(unnamed(t.Elem()))
	case *types.Map:
		return types.NewMap(unnamed(t.Key()), unnamed(t.Elem()))
	default:
		return t
	}
}
