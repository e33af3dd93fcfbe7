package structure

import (
	"go/ast"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// failing lists the packages whose operations are tried with each of their calls failing.
var failing = []string{"autograd", "autograd/checkpoint", "autograd/metric", "autograd/nn", "autograd/offload", "autograd/optim", "autograd/parallel", "autograd/remat", "autograd/safetensors", "autograd/torchfile", "device/rendezvous", "memcache", "tensor", "trace", "trace/live", "trace/record", "trace/timeline", "transfer", "transfer/loader"}

// TestOperationsFail: each exported operation that can fail is in a row of failtest in its
// package's tests, or has a reason in testdata/failures.txt, which has no other lines.
func TestOperationsFail(t *testing.T) {
	text, err := os.ReadFile("testdata/failures.txt")
	require.NoError(t, err)
	without := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 0 && f[0] != "#" {
			require.Greater(t, len(f), 1, "a reason: %s", line)
			without[f[0]] = false
		}
	}
	for _, p := range ours(t) {
		for _, folder := range failing {
			if p.short() != folder {
				continue
			}
			rows := rowsOf(t, folder)
			pkg, _ := check(t, p, &types.Info{Uses: map[*ast.Ident]types.Object{}})
			for _, name := range canFail(pkg) {
				key := folder + "." + name
				_, excepted := without[key]
				assert.True(t, rows[name] || excepted, "%s has no row of failtest: add one to %s/failure_test.go, or a line with the reason to testdata/failures.txt", key, folder)
				assert.False(t, rows[name] && excepted, "%s has a row, and a line in testdata/failures.txt", key)
				if excepted {
					without[key] = true
				}
			}
		}
	}
	for key, used := range without {
		assert.True(t, used, "testdata/failures.txt: there is no %s that can fail", key)
	}
}

// rowsOf are the operations that rows in a folder's tests name.
func rowsOf(t *testing.T, folder string) map[string]bool {
	files, err := filepath.Glob(filepath.Join(root, folder, "*failure*_test.go"))
	require.NoError(t, err)
	rows := map[string]bool{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`\bOf: +"([^"]+)"`).FindAllStringSubmatch(string(text), -1) {
			for _, name := range strings.Fields(m[1]) {
				rows[name] = true
			}
		}
	}
	return rows
}

// canFail are the exported functions and methods of a package that return an error, and those whose
// error sticks.
func canFail(pkg *types.Package) (names []string) {
	fails := func(f types.Object) bool {
		s := f.Type().(*types.Signature)
		results := s.Results()
		return results.Len() > 0 && results.At(results.Len()-1).Type().String() == "error" || sticks(s)
	}
	for _, name := range pkg.Scope().Names() {
		o := pkg.Scope().Lookup(name)
		switch o := o.(type) {
		case *types.Func:
			if o.Exported() && fails(o) {
				names = append(names, name)
			}
		case *types.TypeName:
			of, ok := o.Type().(*types.Named)
			if !ok || !o.Exported() || types.IsInterface(of) {
				continue
			}
			for m := range of.Methods() {
				if m.Exported() && fails(m) {
					names = append(names, name+"."+m.Name())
				}
			}
		}
	}
	return names
}

// sticks reports whether a function makes a variable of a tape, whose error sticks, or is a method of
// an initialiser, to which errors stick, that makes something.
func sticks(s *types.Signature) bool {
	for r := range s.Results().Variables() {
		made := strings.TrimPrefix(r.Type().String(), "[]")
		if made == "*"+module+"/autograd.Variable" {
			return true
		}
		if s.Recv() != nil && strings.HasSuffix(s.Recv().Type().String(), "nn.Initializer") && strings.HasPrefix(made, "*") {
			return true
		}
	}
	return false
}
