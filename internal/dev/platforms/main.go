// Platforms type-checks the module, tests included, for other systems, from source. It reads only
// the declarations of imports. So it takes seconds for faults that go vet finds only after
// compiling the standard library for each system; make nightly runs go vet too.
//
//	go run ./internal/dev/platforms linux/386 windows/amd64
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	for _, platform := range os.Args[1:] {
		if err := check(context.Background(), ".", platform); err != nil {
			fmt.Fprintf(os.Stderr, "platforms: %s: %v\n", platform, err)
			os.Exit(1)
		}
		fmt.Println(platform)
	}
}

// listed is a package, or a variant of it for tests, as go list prints it.
type listed struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string
	Module          *struct{ Main bool }
}

// check type-checks the packages of the module in dir, as they are built for a platform without
// cgo.
func check(ctx context.Context, dir, platform string) error {
	system, arch, ok := strings.Cut(platform, "/")
	sizes := types.SizesFor("gc", arch)
	if !ok || sizes == nil {
		return errors.New("want a system and an architecture, such as linux/386")
	}
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-test", "-json=ImportPath,Dir,GoFiles,ImportMap,Module", "./...")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+arch)
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	done := map[string]*types.Package{"unsafe": types.Unsafe}
	// imports of a package come before it
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("go list: %w", err)
		}
		// go test generates the main packages of tests.
		if done[p.ImportPath] != nil || strings.HasSuffix(p.ImportPath, ".test") {
			continue
		}
		if done[p.ImportPath], err = p.check(done, sizes); err != nil {
			return err
		}
	}
}

func (p *listed) check(done map[string]*types.Package, sizes types.Sizes) (*types.Package, error) {
	own := p.Module != nil && p.Module.Main
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		if !filepath.IsAbs(name) {
			name = filepath.Join(p.Dir, name)
		}
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	var errs []error
	config := types.Config{
		IgnoreFuncBodies: !own,
		Sizes:            sizes,
		Importer:         importer{p.ImportMap, done},
		Error:            func(err error) { errs = append(errs, err) },
	}
	// a variant for tests has their name after a space
	path, _, _ := strings.Cut(p.ImportPath, " ")
	pkg, _ := config.Check(path, fset, files, nil)
	if own {
		return pkg, errors.Join(errs...)
	}
	return pkg, nil // without bodies, imports look unused
}

// importer finds the packages that were checked.
type importer struct {
	names map[string]string // paths with another meaning in this package
	done  map[string]*types.Package
}

func (i importer) Import(path string) (*types.Package, error) {
	if to := i.names[path]; to != "" {
		path = to
	}
	if p := i.done[path]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%s has not been checked", path)
}
