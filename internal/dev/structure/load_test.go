package structure

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
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
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write testdata/api, testdata/exported.txt and the table in THIRD_PARTY_NOTICES.md")

const (
	module = "github.com/cistern-ml/cistern"
	root   = "../../.."
)

// listed is a package as the go command describes it.
type listed struct {
	Name, ImportPath, Dir, Export string
	GoFiles, CgoFiles, EmbedFiles []string
	Module                        *struct{ Path string }
	Imports                       []string
}

// short is the package's path in the module.
func (p *listed) short() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

func (p *listed) ours() bool {
	return p.ImportPath == module || strings.HasPrefix(p.ImportPath, module+"/")
}

// list returns the module's packages and all their imports from the go command. Export data is in
// the build cache, where the tests of the other packages have put it, so that this takes a second.
var list = sync.OnceValues(func() ([]*listed, error) {
	cmd := exec.Command("go", "list", "-deps", "-export", "-tags="+tags, "-json=Name,ImportPath,Dir,Export,GoFiles,CgoFiles,EmbedFiles,Module,Imports", "./...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, &stderr)
	}
	var packages []*listed
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(listed)
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
})

// ours lists the packages of the module.
func ours(t *testing.T) []*listed {
	t.Helper()
	all, err := list()
	require.NoError(t, err)
	all = slices.DeleteFunc(slices.Clone(all), func(p *listed) bool { return !p.ours() })
	require.Greater(t, len(all), 20)
	return all
}

// public lists the packages that programs can import.
func public(t *testing.T) []*listed {
	t.Helper()
	return slices.DeleteFunc(ours(t), func(p *listed) bool {
		return p.Name == "main" || in(p.short(), "internal") || strings.Contains(p.short()+"/", "/internal/")
	})
}

var packages = map[string]*types.Package{}

// checked returns the types of a package, without checking function bodies. The tests share them.
func checked(t *testing.T, p *listed) *types.Package {
	t.Helper()
	if packages[p.ImportPath] == nil {
		packages[p.ImportPath], _ = check(t, p, nil)
	}
	return packages[p.ImportPath]
}

// check returns the types of a package and the positions of its files. It checks function bodies if
// info is not nil.
func check(t *testing.T, p *listed, info *types.Info) (*types.Package, *token.FileSet) {
	t.Helper()
	all, err := list()
	require.NoError(t, err)
	exports := map[string]string{}
	for _, p := range all {
		exports[p.ImportPath] = p.Export
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, f)
	}
	config := types.Config{
		IgnoreFuncBodies: info == nil,
		FakeImportC:      true,
		Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
			name := exports[path]
			if name == "" {
				return nil, fmt.Errorf("no export data of %s", path)
			}
			return os.Open(name)
		}),
	}
	pkg, err := config.Check(p.ImportPath, fset, files, info)
	require.NoError(t, err)
	return pkg, fset
}
