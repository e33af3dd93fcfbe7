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

// coreOfAutograd are the files of package autograd that use neither operations nor features. Files
// of operations begin with op_, and all others are features, layers and optimisers.
const coreOfAutograd = "tape variable backward final op call func inplace slab room reset frame module error random bfloat16 parameter attachment hooks rerun"

// operationsMayUse are unexported names of the core that operations use. They serve operations with
// several results, checks before a call exists, and gradients that are added to in place.
const operationsMayUse = "applyAs begin bring ctx dims donate doneOwn endHolds fail free grad holds inert inputs last live masked needsGrad newOp nextRandom onto out owned param random record reluOf root rt seed share stream tape training value"

// features are the prefixes of files that are to be packages of their own.
const features = "adagrad adam checkpoint clip group minimize offload onecycle optimizer parallel parameter_offload residency rmsprop schedule scheduler sgd"

// featuresMayUse are unexported names of the core, of a line each, that features use.
const featuresMayUse = "checkContext isNil moduleName withLabel"

// TestTheTapeNamesNoFeature: the core of package autograd does not refer to operations or features,
// such as offloading. Operations do not refer to features. Both use exported names of the core except
// those of operationsMayUse and featuresMayUse.
func TestTheTapeNamesNoFeature(t *testing.T) {
	core := map[string]bool{}
	for _, f := range strings.Fields(coreOfAutograd) {
		core[f+".go"] = true
	}
	level := func(file string) int {
		switch {
		case core[file]:
			return 0
		case strings.HasPrefix(file, "op_"):
			return 1
		}
		return 2
	}
	feature := func(file string) bool {
		return slices.ContainsFunc(strings.Fields(features), func(prefix string) bool { return strings.HasPrefix(file, prefix) })
	}
	used, byFeatures := map[string]bool{}, map[string]bool{}
	for _, p := range ours(t) {
		if p.short() != "autograd" {
			continue
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
			case level(file) < level(other):
				assert.Fail(t, "a reference up", "%s:%d uses %s of %s", file, from.Line, o.Name(), other)
			case level(file) == 1 && level(other) == 0 && declared && !o.Exported():
				used[o.Name()] = true
			case feature(file) && level(file) == 2 && level(other) == 0 && declared && !o.Exported():
				byFeatures[o.Name()] = true
			}
		}
		for f := range core {
			assert.True(t, seen[f], "there is no %s", f)
		}
	}
	assert.Equal(t, strings.Fields(operationsMayUse), slices.Sorted(maps.Keys(used)), "what operations use of the core")
	assert.Equal(t, strings.Fields(featuresMayUse), slices.Sorted(maps.Keys(byFeatures)), "what features use of the core")
}
