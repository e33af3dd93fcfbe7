package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// change is a mutant applied to the tree: a file and its changed text.
type change struct {
	file, text string
}

// function is a function that a mutant may change.
type function struct {
	file, text string // the whole file
	fset       *token.FileSet
	decl       *ast.FuncDecl
}

// folder is a folder in one build.
type folder struct {
	dir, tags string
	race      bool
}

// parsed has each folder's functions, which are read once: a list has up to a hundred mutants of
// one folder.
var parsed sync.Map

// functionsOf returns the functions of m's folder in m's build.
func (m *mutant) functionsOf(root string) ([]function, error) {
	f := folder{filepath.Join(root, m.pkg, m.in), m.tags, m.race}
	read, _ := parsed.LoadOrStore(f, sync.OnceValues(f.functions))
	return read.(func() ([]function, error))()
}

func (f folder) functions() ([]function, error) {
	in := build.Default
	in.BuildTags = strings.FieldsFunc(f.tags, func(r rune) bool { return r == ',' || r == ' ' })
	if f.race {
		in.CgoEnabled, in.BuildTags = true, append(in.BuildTags, "race")
	}
	files, err := filepath.Glob(filepath.Join(f.dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var list []function
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		if built, err := in.MatchFile(f.dir, filepath.Base(file)); err != nil {
			return nil, err
		} else if !built {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, file, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range parsed.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
				list = append(list, function{file: file, text: string(text), fset: fset, decl: d})
			}
		}
	}
	return list, nil
}

// apply finds the function that m changes and makes the edits. A function of m's name in which they
// fit comes first. Otherwise the function was renamed or its text moved, and the only function in
// which they fit is taken.
func (m *mutant) apply(root string) (change, error) {
	fail := func(err error) (change, error) {
		return change{}, fmt.Errorf("mutants: %s:%d: %q: %w", listOf(root, m.pkg), m.line, m.name, err)
	}
	all, err := m.functionsOf(root)
	if err != nil {
		return fail(err)
	}
	named, others := split(all, func(f function) bool { return f.name() == m.fn })
	// why the edits do not fit into the function of that name
	var first error
	for _, f := range named {
		text, err := f.change(m.edits)
		if err == nil {
			return change{f.file, text}, nil
		}
		first = cmp.Or(first, err)
	}
	var fits []change
	for _, f := range others {
		if text, err := f.change(m.edits); err == nil {
			fits = append(fits, change{f.file, text})
		}
	}
	switch {
	case len(fits) == 1:
		return fits[0], nil
	case len(fits) > 1:
		return fail(fmt.Errorf("no function %s has the text, and %d others have it", m.fn, len(fits)))
	case first != nil:
		return fail(fmt.Errorf("%s: %w", m.fn, first))
	}
	return fail(fmt.Errorf("there is no function %s, and no other one has the text", m.fn))
}

func split(all []function, is func(function) bool) (yes, no []function) {
	for _, f := range all {
		if is(f) {
			yes = append(yes, f)
		} else {
			no = append(no, f)
		}
	}
	return yes, no
}

// name returns the function's name, or Type.method.
func (f function) name() string {
	if f.decl.Recv == nil {
		return f.decl.Name.Name
	}
	receiver := f.decl.Recv.List[0].Type
	for {
		switch x := receiver.(type) {
		case *ast.StarExpr:
			receiver = x.X
		case *ast.IndexExpr:
			receiver = x.X
		case *ast.IndexListExpr:
			receiver = x.X
		case *ast.Ident:
			return x.Name + "." + f.decl.Name.Name
		default:
			return f.decl.Name.Name
		}
	}
}

// span is a range of a file's text, with its replacement.
type span struct {
	from, to int
	text     string
}

// change returns the file's text with the edits, each of which must fit once.
func (f function) change(edits []edit) (string, error) {
	var spans []span
	for _, e := range edits {
		s, err := f.find(e)
		if err != nil {
			return "", err
		}
		spans = append(spans, s)
	}
	slices.SortFunc(spans, func(a, b span) int { return b.from - a.from })
	text, before := f.text, len(f.text)
	for _, s := range spans {
		if s.to > before {
			return "", errors.New("two edits overlap")
		}
		text, before = text[:s.from]+s.text+text[s.to:], s.from
	}
	return text, nil
}

// find returns the position of an edit. Lines are compared without their indentation.
func (f function) find(e edit) (span, error) {
	from, to := f.offset(f.decl.Pos()), f.offset(f.decl.End())
	flat, offsets := flatten(f.text[from:to])
	switch n := strings.Count(flat, e.at); {
	case n == 0:
		return span{}, fmt.Errorf("the text after at, %q, is not in it", e.at)
	case n > 1:
		return span{}, fmt.Errorf("the text after at, %q, is in it %d times: it must be there once", e.at, n)
	}
	i := strings.Index(flat, e.at)
	at := span{from + offsets[i], from + offsets[i+len(e.at)-1] + 1, e.to}
	if e.how == "to" {
		return at, nil
	}
	line := f.fset.Position(f.fset.File(f.decl.Pos()).Pos(at.from)).Line
	for _, s := range f.statements() {
		if f.fset.Position(s.Pos()).Line == line {
			return span{f.offset(s.Pos()), f.offset(s.End()), e.to}, nil
		}
	}
	return span{}, fmt.Errorf("no statement begins on the line of %q", e.at)
}

func (f function) offset(p token.Pos) int { return f.fset.Position(p).Offset }

// statements returns the statements in lists of statements, outer ones first.
func (f function) statements() (all []ast.Stmt) {
	ast.Inspect(f.decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BlockStmt:
			all = append(all, n.List...)
		case *ast.CaseClause:
			all = append(all, n.Body...)
		case *ast.CommClause:
			all = append(all, n.Body...)
		}
		return true
	})
	return all
}

// flatten returns the text without indentation, and for each byte its offset in the text.
func flatten(text string) (flat string, offsets []int) {
	var b strings.Builder
	indent := true
	for i := range len(text) {
		c := text[i]
		if indent = indent && (c == '\t' || c == ' '); indent {
			continue
		}
		b.WriteByte(c)
		offsets = append(offsets, i)
		indent = c == '\n'
	}
	return b.String(), offsets
}
