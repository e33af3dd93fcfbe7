package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const (
	chosenEnv  = "WRONG_OPERATOR"
	reachedEnv = "REACHED_OPERATORS"
)

// suite has the tests of a package whose operators can be wrong.
type suite struct {
	Package   string // its folder
	All       int    // operators of the package
	Operators []operator
}

// operator is a drawn operator. Its number is its index in the list plus 1.
type operator struct{ At, Change string }

// draw configures the draw from each package.
type draw struct {
	n          int
	seed       string
	statements bool // instead of operators
}

// listed is a package in the output of go list -json.
type listed struct {
	Name, ImportPath, Dir, Export string
	GoFiles                       []string
	DepOnly                       bool
}

// buildAll builds the tests of the packages into dir, with a list of their operators.
func buildAll(ctx context.Context, dir string, packages []string, draw draw) error {
	all, err := list(ctx, packages)
	if err != nil {
		return err
	}
	exports := map[string]string{}
	for _, p := range all {
		exports[p.ImportPath] = p.Export
	}
	var suites []suite
	for _, p := range all {
		if p.DepOnly {
			continue
		}
		s, err := p.build(ctx, dir, exports, draw)
		if err != nil {
			return fmt.Errorf("operators: %s: %w", p.ImportPath, err)
		}
		suites = append(suites, s)
	}
	text, err := json.MarshalIndent(suites, "", "\t")
	return errors.Join(err, os.WriteFile(filepath.Join(dir, "operators.json"), text, 0o600))
}

func list(ctx context.Context, packages []string) (all []*listed, err error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-deps", "-export", "-json=Name,ImportPath,Dir,Export,GoFiles,DepOnly"}, packages...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("operators: go list: %w", err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(listed)
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("operators: go list: %w", err)
		}
		all = append(all, p)
	}
}

// build draws operators and builds the tests.
func (p *listed) build(ctx context.Context, dir string, exports map[string]string, draw draw) (s suite, err error) {
	fset, find, texts, err := p.read(exports, draw.statements)
	if err != nil {
		return s, err
	}
	cwd, err := os.Getwd()
	if err != nil {
		return s, err
	}
	if s.Package, err = filepath.Rel(cwd, p.Dir); err != nil {
		return s, err
	}
	s.All = len(find.sites)
	random := rand.New(rand.NewChaCha8(sha256.Sum256([]byte(draw.seed + " " + p.ImportPath))))
	drawn := random.Perm(len(find.sites))
	drawn = drawn[:min(draw.n, len(drawn))]
	slices.Sort(drawn)
	edits := map[string][]edit{}
	for i, at := range drawn {
		site := find.sites[at]
		to := token.ILLEGAL
		op := site.op
		if of, ok := assigns[op]; ok {
			op = of
		}
		if _, unary := site.node.(*ast.UnaryExpr); !unary && len(wrong[op]) > 0 {
			to = wrong[op][random.IntN(len(wrong[op]))]
		}
		file := fset.File(site.pos)
		edits[file.Name()] = append(edits[file.Name()], site.edits(file, texts[file.Name()], i+1, to)...)
		pos := fset.Position(site.pos)
		s.Operators = append(s.Operators, operator{fmt.Sprintf("%s:%d:%d", filepath.Join(s.Package, filepath.Base(pos.Filename)), pos.Line, pos.Column), describe(site, to)})
	}
	return s, p.compile(ctx, filepath.Join(dir, s.binary()), edits, texts)
}

// describe returns a text such as "< becomes <=".
func describe(s site, to token.Token) string {
	switch {
	case s.op == token.ILLEGAL:
		return "the statement is left out"
	case s.op == token.INC:
		to = token.DEC
	case s.op == token.DEC:
		to = token.INC
	case to == token.ILLEGAL:
		return s.op.String() + " is left out"
	}
	if _, ok := s.node.(*ast.AssignStmt); ok {
		return fmt.Sprintf("%v becomes %v=", s.op, to)
	}
	return fmt.Sprintf("%v becomes %v", s.op, to)
}

// binary returns the name of the tests' file.
func (s *suite) binary() string {
	return strings.ReplaceAll(filepath.ToSlash(s.Package), "/", "-") + ".test"
}

// read finds the operators of a package, and reads its files.
func (p *listed) read(exports map[string]string, statements bool) (*token.FileSet, *finder, map[string]string, error) {
	fset := token.NewFileSet()
	texts := map[string]string{}
	var files []*ast.File
	for _, name := range p.GoFiles {
		name = filepath.Join(p.Dir, name)
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, nil, nil, err
		}
		f, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, nil, nil, err
		}
		texts[name] = string(text)
		files = append(files, f)
	}
	find := &finder{statements: statements, info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}}
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })}
	if _, err := config.Check(p.ImportPath, fset, files, find.info); err != nil {
		return nil, nil, nil, err
	}
	for _, f := range files {
		if !ast.IsGenerated(f) {
			find.find(f)
		}
	}
	return fset, find, texts, nil
}

// compile builds the tests with the edits laid over the package.
func (p *listed) compile(ctx context.Context, binary string, edits map[string][]edit, texts map[string]string) error {
	temp, err := os.MkdirTemp("", "operators")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	overlay := map[string]string{}
	lay := func(name, text string) error {
		over := filepath.Join(temp, filepath.Base(name))
		overlay[name] = over
		return os.WriteFile(over, []byte(text), 0o600)
	}
	err = lay(filepath.Join(p.Dir, "wrong_operators.go"), helpers(p.Name))
	for name, e := range edits {
		err = errors.Join(err, lay(name, rewrite(texts[name], e)))
	}
	text, jsonErr := json.Marshal(map[string]any{"Replace": overlay})
	file := filepath.Join(temp, "overlay.json")
	if err = errors.Join(err, jsonErr, os.WriteFile(file, text, 0o600)); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay="+file, "-o", binary, p.ImportPath)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go test -c: %w\n%s", err, out)
	}
	return nil
}
