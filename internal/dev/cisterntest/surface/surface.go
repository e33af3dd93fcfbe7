// Package surface calls the exported functions and methods of a package with arguments that a
// program passes by mistake: nil, zero values, and sizes near the limits of their types. A test
// fills a [Surface] with the functions and a value of each type with methods; nothing exported may
// be missing.
package surface

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Surface describes all exports of the package in the working directory.
type Surface struct {
	T testing.TB
	// Functions are the exported functions by name.
	Functions map[string]any
	// Receivers make a value of each type with methods, a new one for each call.
	Receivers map[string]func() any
	// Without has the types and functions that are not called, with the reason.
	Without map[string]string
	// Valid returns a valid argument of a type, or nil for its zero value.
	Valid func(reflect.Type) any
	// Allowed has the arguments that may be nil, or elements and fields of them, with the reason:
	// "Function 1", "Type.Method 2", "Type.Method 2.Field", or the name of a type, such as
	// "Option". The first argument is number 1.
	Allowed map[string]string
	// Done is called with each result that is not nil.
	Done func(call string, result any)

	used map[string]bool
}

// function is one function, or a method of a new receiver.
type function struct {
	name     string
	typ      reflect.Type
	receiver func() any // nil: none
	value    reflect.Value
	method   string
}

// in returns the types of the arguments without the receiver.
func (f *function) in() []reflect.Type {
	var all []reflect.Type
	for i := range f.typ.NumIn() {
		all = append(all, f.typ.In(i))
	}
	return all
}

// functions returns everything that is called, ordered by name.
func (s *Surface) functions() []*function {
	api := Exported(s.T)
	slices.Sort(api.Functions)
	var all []*function
	// compacted because two platforms may declare a name
	for _, name := range slices.Compact(api.Functions) {
		f := s.Functions[name]
		if s.Without[name] == "" {
			require.NotNil(s.T, f, "the test does not call %s", name)
			all = append(all, &function{name: name, typ: reflect.TypeOf(f), value: reflect.ValueOf(f)})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(api.Methods)) {
		if len(api.Methods[name]) > 0 && s.Without[name] == "" {
			require.NotNil(s.T, s.Receivers[name], "the test has no value of %s", name)
		}
	}
	for _, typ := range slices.Sorted(maps.Keys(s.Receivers)) {
		v := reflect.ValueOf(s.Receivers[typ]())
		for i := range v.NumMethod() {
			method := v.Type().Method(i).Name
			name := typ + "." + method
			if s.Without[name] == "" {
				all = append(all, &function{name: name, typ: v.Method(i).Type(), receiver: s.Receivers[typ], method: method})
			}
		}
	}
	return all
}

// call calls f, and returns its panic, and its error, if it has one.
func (s *Surface) call(f *function, args []reflect.Value) (panicked any, err error) {
	fn := f.value
	if f.receiver != nil {
		fn = reflect.ValueOf(f.receiver()).MethodByName(f.method)
	}
	defer func() { panicked = recover() }()
	run := fn.Call
	if f.typ.IsVariadic() {
		run = fn.CallSlice
	}
	for _, r := range run(args) {
		switch r.Kind() {
		case reflect.Pointer, reflect.Interface, reflect.Func, reflect.Map, reflect.Slice:
			if r.IsNil() {
				continue
			}
		}
		if e, ok := r.Interface().(error); ok && r.Type() == reflect.TypeFor[error]() {
			err = e
		} else if s.Done != nil {
			s.Done(f.name, r.Interface())
		}
	}
	return nil, err
}

// valid returns a usable argument of a type.
func (s *Surface) valid(typ reflect.Type) reflect.Value {
	of := reflect.New(typ).Elem()
	if v := s.Valid(typ); v != nil {
		of.Set(reflect.ValueOf(v))
	} else if typ.Kind() == reflect.Slice {
		if v := s.Valid(typ.Elem()); v != nil {
			of.Set(reflect.Append(of, reflect.ValueOf(v)))
		}
	}
	return of
}

// API has the exports of a package.
type API struct {
	Functions []string
	// declared methods of each type, also of a type without any
	Methods map[string][]string
}

// Exported reads the API of the package in the working directory from its files. Names of the
// packages in folders, if any are given, are qualified by the folder: "nn.Linear".
func Exported(t testing.TB, folders ...string) API {
	t.Helper()
	api := API{Methods: map[string][]string{}}
	for _, folder := range append([]string{""}, folders...) {
		names, err := filepath.Glob(filepath.Join(folder, "*.go"))
		require.NoError(t, err)
		qualifier := ""
		if folder != "" {
			qualifier = folder + "."
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			for _, decl := range file.Decls {
				api.add(qualifier, decl)
			}
		}
		require.NotEmpty(t, names, "the folder %q has no files of a package", folder)
	}
	return api
}

func (a *API) add(qualifier string, decl ast.Decl) {
	switch d := decl.(type) {
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if s, ok := s.(*ast.TypeSpec); ok && s.Name.IsExported() {
				a.Methods[qualifier+s.Name.Name] = append(a.Methods[qualifier+s.Name.Name], []string{}...)
			}
		}
	case *ast.FuncDecl:
		switch {
		case !d.Name.IsExported():
		case d.Recv == nil:
			a.Functions = append(a.Functions, qualifier+d.Name.Name)
		default:
			recv := d.Recv.List[0].Type
			if star, ok := recv.(*ast.StarExpr); ok {
				recv = star.X
			}
			if name := fmt.Sprint(recv); ast.IsExported(name) {
				a.Methods[qualifier+name] = append(a.Methods[qualifier+name], d.Name.Name)
			}
		}
	}
}
