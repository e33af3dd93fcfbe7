package structure

import (
	"go/ast"
	"go/types"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// belowAutograd lists the packages of layers, optimisers and features, and their imports of each
// other. They use only exported names, as a program does.
var belowAutograd = map[string]string{
	"nn": "", "optim": "", "remat": "nn", "offload": "nn optim", "checkpoint": "nn optim", "parallel": "nn optim",
}

// coreOfAutograd are the files of package autograd that use no operations. Files of operations begin
// with op_.
const coreOfAutograd = "anomaly backward bfloat16 func hooks module op operand parameter random rerun reset scope tape variable"

// operationsMayUse are unexported names of the core that operations use. They serve operations with
// several results, checks before a call exists, and gradients that are added to in place.
const operationsMayUse = "applyAs begin bring ctx dims donate doneOwn endHolds fail free grad holds inert inputs last masked needsGrad newOp nextRandom onto out owned record reluOf root rt share tape training value"

// TestTheTapeNamesNoFeature: package autograd imports no package of features, and these import each
// other in one direction.
func TestTheTapeNamesNoFeature(t *testing.T) {
	seen := 0
	for _, p := range ours(t) {
		folder, below := strings.CutPrefix(p.short(), "autograd/")
		may, feature := belowAutograd[folder]
		if p.short() != "autograd" && !(below && feature) {
			continue
		}
		seen++
		for _, path := range p.Imports {
			other, ok := strings.CutPrefix(path, module+"/autograd/")
			if _, feature := belowAutograd[other]; ok && feature {
				assert.Contains(t, strings.Fields(may), other, "%s imports %s", p.short(), other)
			}
		}
	}
	assert.Equal(t, len(belowAutograd)+1, seen)
}

// TestTheCoreNamesNoOperation: the core of package autograd does not refer to operations.
// Operations use exported names of the core except those of operationsMayUse.
func TestTheCoreNamesNoOperation(t *testing.T) {
	core := map[string]bool{}
	for _, f := range strings.Fields(coreOfAutograd) {
		core[f+".go"] = true
	}
	used := map[string]bool{}
	for _, p := range ours(t) {
		if p.short() != "autograd" {
			continue
		}
		for _, f := range p.GoFiles {
			assert.True(t, core[f] || strings.HasPrefix(f, "op_") || f == "doc.go", "%s is of the core, or of operations", f)
		}
		info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
		pkg, fset := check(t, p, info)
		seen := map[string]bool{}
		for id, o := range info.Uses {
			if o.Pkg() != pkg {
				continue
			}
			from, to := fset.Position(id.Pos()), fset.Position(o.Pos())
			file, other := filepath.Base(from.Filename), filepath.Base(to.Filename)
			seen[file] = true
			v, isVar := o.(*types.Var)
			_, isFunc := o.(*types.Func)
			declared := isFunc || o.Parent() == pkg.Scope() || isVar && v.IsField()
			switch {
			case core[file] && !core[other]:
				assert.Fail(t, "a reference up", "%s:%d uses %s of %s", file, from.Line, o.Name(), other)
			case !core[file] && core[other] && declared && !o.Exported():
				used[o.Name()] = true
			}
		}
		for f := range core {
			assert.True(t, seen[f], "there is no %s", f)
		}
	}
	assert.Equal(t, strings.Fields(operationsMayUse), slices.Sorted(maps.Keys(used)), "what operations use of the core")
}
