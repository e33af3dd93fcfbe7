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

// roomsOfAutograd are the packages that the files of these prefixes will be of, first match. All files that are
// neither of the core nor listed here are nn's.
var roomsOfAutograd = []struct{ name, files string }{
	{"remat", "checkpoint_activation checkpoint_plan checkpoint_regions checkpoint_unread"},
	{"checkpoint", "checkpoint"},
	{"offload", "offload optimizer_offload parameter_offload residency"},
	{"parallel", "parallel"},
	{"optim", "adagrad adam clip group minimize onecycle optimizer rmsprop schedule sgd"},
}

// TestTheTapeNamesNoFeature: the core of package autograd does not refer to operations or features,
// such as offloading. Operations do not refer to features, and use exported names of the core except
// those of operationsMayUse. Features, layers and optimisers use exported names of each other.
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
	// room is the package that a file will be of.
	room := func(file string) string {
		if level(file) < 2 {
			return "core"
		}
		for _, r := range roomsOfAutograd {
			if slices.ContainsFunc(strings.Fields(r.files), func(prefix string) bool { return strings.HasPrefix(file, prefix) }) {
				return r.name
			}
		}
		return "nn"
	}
	used := map[string]bool{}
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
			case level(file) == 2 && room(file) != room(other) && declared && !o.Exported():
				assert.Fail(t, "a name that is not exported", "%s:%d, of %s, uses %s of %s", file, from.Line, room(file), o.Name(), room(other))
			}
		}
		for f := range core {
			assert.True(t, seen[f], "there is no %s", f)
		}
	}
	assert.Equal(t, strings.Fields(operationsMayUse), slices.Sorted(maps.Keys(used)), "what operations use of the core")
}
