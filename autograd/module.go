package autograd

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/cistern-ml/cistern/autograd/internal/names"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
)

// Profiles show memory by the module that made it (memcache.Label). A tape is in one module at a
// time, whose context its allocations have; a recorded operation remembers its module, and its
// backward step runs there. Names come from three places: the program says Tape.Module, a
// Sequential numbers its layers, and a layer knows itself by the names of its parameters, which an
// optimiser has told them. So a model of structs has PyTorch's names without a word in its Forward.

// modulePlace is a module that a tape has been in.
type modulePlace struct {
	path string // inside of the module that the tape's context names
	// contexts of the forward and of the backward pass; nil: not needed yet
	contexts [2]context.Context
}

// places are the modules that a tape has been in. They are kept for another tape, as its slab is.
type places struct {
	modules map[string]*modulePlace // by path
	all     []*modulePlace          // of modules, and for those to come
	paths   map[[2]string]string    // by what they are joined of; of earlier tapes, too
}

// mostPaths is how many paths are kept for another tape.
const mostPaths = 4096

var allPlaces = sync.Pool{New: func() any { return &places{modules: make(map[string]*modulePlace), paths: make(map[[2]string]string)} }}

func newPlaces() *places {
	if race.Enabled {
		return allPlaces.New().(*places)
	}
	return allPlaces.Get().(*places)
}

func (p *places) recycle() {
	for _, m := range p.all[:len(p.modules)] {
		*m = modulePlace{}
	}
	clear(p.modules)
	if len(p.paths) > mostPaths {
		clear(p.paths)
	}
	if !race.Enabled {
		allPlaces.Put(p)
	}
}

// place is where a tape is in a module that it has not been in before.
func (p *places) place(path string) *modulePlace {
	if n := len(p.modules); n == len(p.all) {
		p.all = append(p.all, new(modulePlace))
	}
	m := p.all[len(p.modules)]
	m.path = path
	p.modules[path] = m
	return m
}

// joined is join of two, which is made once.
func (p *places) joined(outer, inner string) string {
	if outer == "" || inner == "" {
		return outer + inner
	}
	key := [2]string{outer, inner}
	path, ok := p.paths[key]
	if !ok {
		path = names.Join(outer, inner)
		if p.paths != nil { // a closed tape has none
			p.paths[key] = path
		}
	}
	return path
}

// Module calls f, and what is allocated meanwhile, and in the backward pass of what f records,
// belongs in profiles to a part, by its name, of the module that the tape is in
// ([memcache.WithModule]). Modules nest; "" is no part of its own. The result is f's.
//
//	y := tape.Module("attention", func() *autograd.Variable { return b.attend(tape, x) })
func (t *Tape) Module(name string, f func() *Variable) *Variable {
	if f == nil {
		t.fail("Module", fmt.Errorf("%w: the function is nil", ErrInvalid))
		return t.inert()
	}
	if t.none() {
		return t.inert()
	}
	t.calls++
	defer func() { t.calls-- }()
	defer t.setModule(t.enterModule(t.joined(t.module.path, name)))
	return f()
}

// enterModule makes the tape be in a module, by its path, and returns the one it was in.
func (t *Tape) enterModule(path string) (before *modulePlace) {
	before = t.module
	if path != before.path && t.state != "closed" {
		m := t.modules[path]
		if m == nil {
			m = t.place(path)
		}
		t.setModule(m)
	}
	return before
}

// setModule makes the tape be in a module that it has been in before. A tape that was closed
// meanwhile, which has given its places to another one, stays where it is.
func (t *Tape) setModule(m *modulePlace) {
	if t.none() || t.modules[m.path] != m {
		return
	}
	t.module = m
	t.ctx = t.moduleContext()
}

// Entered is a layer that a tape is in, until Leave.
type Entered struct {
	tape   *Tape
	module *modulePlace
	scope  scope
	scoped bool
}

// Enter begins a layer, as [Tape.Layer] does, but frees nothing: it is for layers of several results.
// The module is the one in which the parameter p is called local, or the chain in which the layer of
// p stands at these places, each in the one before.
//
// A layer whose parameters have no names yet, or names from elsewhere in the model, as tied weights
// have, is in the tape's module. Elsewhere is what is not inside of the tape's module, and what has
// another local name. Where the tape is in no module, a layer with nothing but weights of another
// one, which calls them the same, can't be told from that one.
func (t *Tape) Enter(p *Parameter, local string, places ...int) Entered {
	e := t.EnterModule(p, local, places...)
	if !t.none() {
		e.scope, e.scoped = t.open(), true
	}
	return e
}

// EnterModule is Enter for a function that reads its arguments as an operation does, so that
// [Variable.Once] of them counts.
func (t *Tape) EnterModule(p *Parameter, local string, places ...int) Entered {
	e := Entered{tape: t}
	if t.none() {
		return e
	}
	e.module = t.module
	path, ok := p.Module(local, places...)
	if here := t.module.path; ok && (here == "" || strings.HasPrefix(path, here+".")) {
		t.enterModule(path)
	}
	return e
}

// Leave makes the tape be where it was.
func (e Entered) Leave() {
	switch {
	case e.tape.none():
		return
	case e.scoped:
		e.tape.setScope(e.scope)
	}
	e.tape.setModule(e.module)
}

// Module returns the path of the layer that calls the parameter local, or of the chain in which that
// layer stands at these places, if the parameter's name says so.
func (p *Parameter) Module(local string, places ...int) (path string, ok bool) {
	if p == nil {
		return "", false
	}
	path, ok = strings.CutSuffix(p.name, local)
	for i := len(places) - 1; ok && i >= 0; i-- {
		if path, ok = strings.CutSuffix(path, "."); ok {
			path, ok = strings.CutSuffix(path, strconv.Itoa(places[i]))
		}
	}
	if !ok || path == "" {
		return "", ok
	}
	return strings.CutSuffix(path, ".")
}

// moduleContext is the context of what is allocated now.
func (t *Tape) moduleContext() context.Context {
	pass, category := 0, memcache.CategoryActivation
	if t.inBackward {
		pass, category = 1, memcache.CategoryGradient
	}
	ctx := &t.module.contexts[pass]
	if *ctx == nil {
		l := t.label
		l.Module, l.Category = t.joined(l.Module, t.module.path), category
		*ctx = t.labels.With(t.base, l)
	}
	return *ctx
}

// Layer runs f as the Forward of a nn.Layer, and returns f's result. The caller keeps the values that
// exist: no operation in f frees or overwrites them. At the end of f, Layer frees all values that f
// has made, except the result, as [Tape.Frame] does. In profiles f runs in the layer's module. Its
// name is that of p, a parameter of the layer, without the local name, such as "weight" (see
// nn.NameModules). If p is nil or has no name, f runs in the tape's module. After an error of the
// tape f is not called. A call makes no Go objects. See [Tape.Enter] for several results.
//
//	func (l *Gated) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
//		return t.Layer(l.Weight, "weight", func() *autograd.Variable {
//			return t.Mul(t.Linear(x, t.Param(l.Weight), nil), t.Sigmoid(t.Linear(x, t.Param(l.Gate), nil)))
//		})
//	}
func (t *Tape) Layer(p *Parameter, local string, f func() *Variable) *Variable {
	if t.Err() != nil {
		return t.inert()
	}
	defer t.Enter(p, local).Leave()
	return t.framed("Layer", f)
}
