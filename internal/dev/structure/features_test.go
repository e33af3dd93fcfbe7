package structure

import (
	"go/ast"
	"go/types"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// coreOfAutograd are the files of package autograd that know nothing of the features: the tape, and operations.
const (
	coreOfAutograd       = "tape variable backward final func inplace slab room reset frame module error random bfloat16 parameter attachment hooks rerun"
	operationsOfAutograd = "elementwise function matrix matrix_batch norm add_norm attention conv pool reduce softmax statistic shape index dropout loss crossentropy choose recurrent place"
)

// TestTheTapeNamesNoFeature: the core of package autograd and its operations use nothing of the features' files, such as
// offloading and data parallel training.
func TestTheTapeNamesNoFeature(t *testing.T) {
	above := map[string]int{}
	for _, f := range strings.Fields(coreOfAutograd) {
		above[f+".go"] = 0
	}
	for _, f := range strings.Fields(operationsOfAutograd) {
		above[f+".go"] = 1
	}
	for _, p := range ours(t) {
		if p.short() != "autograd" {
			continue
		}
		info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
		pkg, fset := check(t, p, info)
		level := func(file string) int {
			if n, ok := above[filepath.Base(file)]; ok {
				return n
			}
			return 2
		}
		seen := map[string]bool{}
		for id, o := range info.Uses {
			if o.Pkg() != pkg {
				continue
			}
			from, to := fset.Position(id.Pos()), fset.Position(o.Pos())
			seen[filepath.Base(from.Filename)] = true
			if level(from.Filename) < 2 && level(to.Filename) == 2 {
				assert.Fail(t, "a reference to a feature", "%s:%d uses %s of %s", filepath.Base(from.Filename), from.Line, o.Name(), filepath.Base(to.Filename))
			}
		}
		for f := range above {
			assert.True(t, seen[f], "there is no %s", f)
		}
	}
}
