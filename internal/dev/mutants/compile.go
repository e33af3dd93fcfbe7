package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// compile type-checks the mutants, which takes milliseconds for each where its tests take seconds,
// and returns an error for those that do not compile.
func compile(ctx context.Context, root string, mutants []*mutant) error {
	checkers := map[string]*checker{} // by build tags
	var errs []error
	for _, m := range mutants {
		c := checkers[m.tags]
		if c == nil {
			var err error
			if c, err = newChecker(ctx, root, m.tags, "./..."); err != nil {
				return err
			}
			checkers[m.tags] = c
		}
		changed, err := m.apply(root)
		if err == nil {
			if err = c.check(changed.file, changed.text); err != nil {
				err = fmt.Errorf("mutants: %s:%d: %q: %w", listOf(root, m.pkg), m.line, m.name, err)
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// checker type-checks packages of the module with another text of one file. The other files have no
// function bodies, because only the changed file and their declarations matter for a mutant.
type checker struct {
	fset    *token.FileSet
	imports types.Importer
	names   map[string][]string  // of a folder: the paths of its files in this build
	beside  map[string]*ast.File // by path, without functions' bodies
}

// newChecker reads the packages and their imports, as they are built with the tags.
func newChecker(ctx context.Context, root, tags string, packages ...string) (*checker, error) {
	args := []string{"list", "-deps", "-export", "-tags=" + tags, "-json=ImportPath,Dir,Export,GoFiles"}
	cmd := exec.CommandContext(ctx, "go", append(args, packages...)...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("mutants: go list -tags=%s: %w", tags, err)
	}
	c := &checker{fset: token.NewFileSet(), names: map[string][]string{}, beside: map[string]*ast.File{}}
	exports := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Dir, Export string
			GoFiles                 []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("mutants: go list -tags=%s: %w", tags, err)
		}
		exports[p.ImportPath] = p.Export
		for _, name := range p.GoFiles {
			c.names[p.Dir] = append(c.names[p.Dir], filepath.Join(p.Dir, name))
		}
	}
	c.imports = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(exports[path])
	})
	return c, nil
}

// check returns the first compile error of source with the new text.
func (c *checker) check(source, text string) error {
	changed, err := parser.ParseFile(c.fset, source, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	var files []*ast.File
	built := false
	for _, name := range c.names[filepath.Dir(source)] {
		f := changed
		if name != source {
			if f, err = c.declarations(name); err != nil {
				return err
			}
		}
		built = built || name == source
		files = append(files, f)
	}
	if !built {
		return fmt.Errorf("%s is not in this build", source)
	}
	var first error
	config := types.Config{Importer: c.imports, Error: func(err error) {
		if at, ok := errors.AsType[types.Error](err); ok && first == nil && c.fset.Position(at.Pos).Filename == source {
			first = err
		}
	}}
	// Check's error may be due to the omitted bodies. Relevant errors went to Error.
	_, _ = config.Check(filepath.Dir(source), c.fset, files, nil)
	return first
}

// declarations returns the file without function bodies. Generic functions keep theirs, since the
// type checker needs them.
func (c *checker) declarations(name string) (*ast.File, error) {
	if f := c.beside[name]; f != nil {
		return f, nil
	}
	f, err := parser.ParseFile(c.fset, name, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Type.TypeParams == nil {
			d.Body = nil
		}
	}
	c.beside[name] = f
	return f, nil
}
