package structure

import (
	"go/ast"
	"go/types"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// runBack is the allowed share of references between files of a package that run back up, in
// percent of the pairs of files. A reader who follows calls down through such a package returns to
// few files.
var runBack = map[string]float64{
	"memcache": 8, "memcache/internal/placement": 6, "transfer": 5, "internal/peaks": 25,
	"tensor": 6.5, "autograd": 5, "trace": 10,
}

// TestReferencesRunDown orders the files of a package so that files stand above those that they
// use, as well as possible, and counts the pairs of which the lower file uses the upper one.
// References are to functions, methods, types, fields, and package variables and constants.
func TestReferencesRunDown(t *testing.T) {
	found := 0
	for _, p := range ours(t) {
		most, limited := runBack[p.short()]
		if !limited {
			continue
		}
		found++
		names, uses := references(t, p)
		order, up := downward(len(names), uses)
		pairs := 0
		for _, row := range uses {
			for _, use := range row {
				if use {
					pairs++
				}
			}
		}
		var files []string
		for _, i := range order {
			files = append(files, strings.TrimSuffix(names[i], ".go"))
		}
		share := 100 * float64(up) / float64(max(pairs, 1))
		t.Logf("%s: %d of %d run back up, %.1f %%, in the order %s", p.short(), up, pairs, share, strings.Join(files, " "))
		assert.LessOrEqual(t, share, most, p.short())
	}
	assert.Len(t, runBack, found)
}

// references returns which files of a package, by number, use which others.
func references(t *testing.T, p *listed) (names []string, uses [][]bool) {
	names = slices.Concat(p.GoFiles, p.CgoFiles)
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	pkg, fset := check(t, p, info)
	uses = make([][]bool, len(names))
	for i := range uses {
		uses[i] = make([]bool, len(names))
	}
	for id, o := range info.Uses {
		v, isVar := o.(*types.Var)
		_, isFunc := o.(*types.Func)
		if o.Pkg() != pkg || o.Parent() != pkg.Scope() && !isFunc && !(isVar && v.IsField()) {
			continue // of another package, or local
		}
		from, to := filepath.Base(fset.Position(id.Pos()).Filename), filepath.Base(fset.Position(o.Pos()).Filename)
		if from != to {
			uses[slices.Index(names, from)][slices.Index(names, to)] = true
		}
	}
	return names, uses
}

// downward returns an order of n files with few uses of files above, and their number: the best of
// several orders that no single move improves.
func downward(n int, uses [][]bool) (best []int, fewest int) {
	random := rand.New(rand.NewPCG(1, 2))
	fewest = n*n + 1
	for range 60 {
		order := random.Perm(n)
		for better := true; better; {
			better = false
			for i := range order {
				if to := bestPlace(order, i, uses); to != i {
					better = true
					file := order[i]
					order = slices.Insert(slices.Delete(order, i, i+1), to, file)
				}
			}
		}
		up := 0
		for i, lower := range order {
			for _, upper := range order[:i] {
				if uses[lower][upper] {
					up++
				}
			}
		}
		if up < fewest {
			best, fewest = slices.Clone(order), up
		}
	}
	return best, fewest
}

// bestPlace returns the position at which the file at i has the fewest uses back up.
func bestPlace(order []int, i int, uses [][]bool) int {
	count := func(other int) int { // what is gained by standing above another file
		d := 0
		if uses[order[i]][other] {
			d--
		}
		if uses[other][order[i]] {
			d++
		}
		return d
	}
	place, least, d := i, 0, 0
	for j := i - 1; j >= 0; j-- { // above order[j]
		if d += count(order[j]); d < least {
			place, least = j, d
		}
	}
	d = 0
	for j := i + 1; j < len(order); j++ { // below it
		if d -= count(order[j]); d < least {
			place, least = j, d
		}
	}
	return place
}

func TestDownward(t *testing.T) {
	table := func(pairs ...[2]int) [][]bool {
		uses := make([][]bool, 4)
		for i := range uses {
			uses[i] = make([]bool, 4)
		}
		for _, p := range pairs {
			uses[p[0]][p[1]] = true
		}
		return uses
	}
	order, up := downward(4, table([2]int{3, 1}, [2]int{1, 0}, [2]int{0, 2}))
	assert.Equal(t, []int{3, 1, 0, 2}, order)
	assert.Zero(t, up)
	_, up = downward(4, table([2]int{0, 1}, [2]int{1, 2}, [2]int{2, 0}, [2]int{3, 0}, [2]int{0, 3}))
	assert.Equal(t, 2, up, "two circles")
	_, up = downward(4, table())
	assert.Zero(t, up)
}
