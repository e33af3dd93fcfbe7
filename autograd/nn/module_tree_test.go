package nn_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
)

// seenModules are the modules of activations and gradients that the cache's observer has seen.
type seenModules map[string]bool

func (s seenModules) Start(ctx context.Context, op memcache.Op) (context.Context, memcache.Operation) {
	if l := memcache.LabelOf(ctx); l.Category == memcache.CategoryActivation || l.Category == memcache.CategoryGradient {
		s[l.Module] = true
	}
	return ctx, nil
}

// tree makes random models, and records the path of each layer.
type tree struct {
	t     *testing.T
	in    *nn.Initializer
	r     *rand.Rand
	paths map[string]bool                // of all layers, with their types
	at    map[*autograd.Parameter]string // the module of each parameter
	old   []*nn.Linear                   // layers that another place may share
	two   map[*autograd.Parameter]bool   // parameters with two places
}

// module is a path with a type, as profiles show it.
func (g *tree) module(path, layer string) string {
	if path == "" {
		return ""
	}
	m := path + " (" + layer + ")"
	g.paths[m] = true
	return m
}

// put returns a layer at a path, and the module of its result; "" is that of one of its parts.
// around is the enclosing module, and chain reports whether it is a chain. An activation has no
// name of its own, so that it is a module only in chains. A shared layer has its first path if that
// is inside of the enclosing layer; otherwise it belongs to the enclosing layer.
func (g *tree) put(path, around string, chain bool, depth int) (nn.Layer, string) {
	kind := g.r.IntN(10)
	if depth == 0 {
		kind = g.r.IntN(4)
	}
	switch kind {
	case 0:
		if !chain {
			return nn.GELU{}, around
		}
		return nn.GELU{}, g.module(path, "GELU")
	case 1:
		if len(g.old) > 0 && g.r.IntN(2) == 0 {
			l := g.old[g.r.IntN(len(g.old))]
			g.two[l.Weight], g.two[l.Bias] = true, true
			place := around
			if chain {
				place = g.module(path, "Linear") // a checkpoint's own memory is in the second place, too
			}
			if module := g.at[l.Weight]; strings.HasPrefix(module, memcache.ModulePath(around)+".") {
				place = module
			}
			return l, place
		}
		fallthrough
	case 2, 3:
		l := g.in.Linear(4, 4)
		g.at[l.Weight] = g.module(path, "Linear")
		g.at[l.Bias] = g.at[l.Weight]
		g.old = append(g.old, l)
		return l, g.at[l.Weight]
	case 4, 5:
		module := g.module(path, "Sequential")
		var s nn.Sequential
		for i := range 1 + g.r.IntN(3) {
			l, module := g.put(join(path, 2*i), module, true, depth-1)
			s = append(s, l, peek{g.t, module})
		}
		l := g.in.Linear(4, 4) // twice in the chain
		g.module(join(path, len(s)+2), "GELU")
		g.at[l.Weight] = g.module(join(path, len(s)), "Linear")
		g.at[l.Bias] = g.at[l.Weight]
		g.two[l.Weight], g.two[l.Bias] = true, true
		return append(s, l, peek{g.t, g.at[l.Weight]}, nn.GELU{}, l, peek{g.t, g.at[l.Weight]}), g.at[l.Weight]
	case 6:
		l, module := g.put(path, around, chain, depth-1)
		if g.r.IntN(2) == 0 {
			return nn.With(l, func(l nn.Layer, t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return l.Forward(t, x) }), module
		}
		return remat.Layer(l), module
	default:
		b := &branches{t: g.t, module: g.module(path, "branches"), Map: map[string]nn.Layer{}}
		for i := range 1 + g.r.IntN(2) {
			l, module := g.put(join(path, "list", i), b.module, false, depth-1)
			b.List, b.listed = append(b.List, l), append(b.listed, module)
		}
		b.Map["x"], b.mapped = g.put(join(path, "map.x"), b.module, false, depth-1)
		own := g.in.Linear(4, 4) // a layer without parameters of its own has no place
		b.last = g.module(join(path, "last"), "Linear")
		b.Last, g.at[own.Weight], g.at[own.Bias] = own, b.last, b.last
		return nn.LayerOf(b), b.module
	}
}

func join(parts ...any) (path string) {
	for _, p := range parts {
		if s := fmt.Sprint(p); path == "" {
			path = s
		} else {
			path += "." + s
		}
	}
	return path
}

// peek checks the module of the value before it in a chain.
type peek struct {
	t      *testing.T
	module string
}

func (p peek) Parameters() autograd.Parameters { return nil }

func (p peek) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	requireModule(p.t, t, x, p.module)
	return x
}

func requireModule(t *testing.T, tape *autograd.Tape, x *autograd.Variable, module string) {
	require.NoError(t, tape.Err())
	if module != "" {
		require.Equal(t, module, x.Value().Label().Module)
	}
}

// branches is a model of layers in a slice, a map and a field.
type branches struct {
	List []nn.Layer
	Map  map[string]nn.Layer
	Last nn.Layer

	t            *testing.T
	module       string
	listed       []string
	mapped, last string
}

func (b *branches) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		y := t.MulScalar(x, 2)
		requireModule(b.t, t, y, b.module)
		for i, l := range b.List {
			h := l.Forward(t, x)
			requireModule(b.t, t, h, b.listed[i])
			y = t.Add(y, h)
		}
		h := b.Map["x"].Forward(t, y)
		requireModule(b.t, t, h, b.mapped)
		h = b.Last.Forward(t, h)
		requireModule(b.t, t, h, b.last)
		return t.Add(y, h)
	})
}

// TestModulesOfTrees compares the module of each result, gradient and request of memory with the
// layer's path in the tree.
func TestModulesOfTrees(t *testing.T) {
	for seed := range uint64(200) {
		seen := seenModules{}
		b := tapetest.OpenObserved(t, 64<<20, seen)
		in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
		g := &tree{t: t, in: in, r: rand.New(rand.NewPCG(seed, 43)), paths: map[string]bool{"": true}, at: map[*autograd.Parameter]string{}, two: map[*autograd.Parameter]bool{}}
		model := struct {
			First *nn.Linear
			Model nn.Layer
		}{First: in.Linear(4, 4)}
		g.at[model.First.Weight], g.at[model.First.Bias] = g.module("first", "Linear"), g.module("first", "Linear")
		model.Model, _ = g.put("model", "", false, 4)
		require.NoError(t, in.Err())
		params := nn.ParametersOf(model)
		if seed%2 == 0 {
			nn.Own(in, optim.NewSGD(params, optim.SGDConfig{}))
		}
		require.NoError(t, nn.NameModules(model))
		clear(seen)
		for range 2 {
			tape := autograd.NewTape(b.Ctx, b.RT)
			x := autograd.Upload(tape, make([]float32, 8), 2, 4)
			y := model.Model.Forward(tape, model.First.Forward(tape, x))
			_, err := tape.Backward(tape.Sum(y))
			require.NoError(t, err, "seed %d", seed)
			require.NoError(t, tape.Close())
		}
		for m := range seen {
			require.True(t, g.paths[m], "seed %d: no layer is %q: %v", seed, m, g.paths)
		}
		for _, p := range params {
			require.Equal(t, g.at[p.Parameter], p.Value().Label().Module, "seed %d", seed)
			if p.Grad() != nil {
				if !g.two[p.Parameter] { // otherwise the gradient is made in either module
					require.Equal(t, g.at[p.Parameter], p.Grad().Label().Module, "seed %d", seed)
				}
				require.NoError(t, p.ZeroGrad(b.Ctx))
			}
		}
		require.NoError(t, in.Close())
	}
}
