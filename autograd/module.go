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
// backward step runs there. Names come from three places: Tape.Module, the numbers of a Sequential,
// and the names of a layer's parameters, which an optimiser has set. So a model of structs has
// PyTorch's names without a word in its Forward.

// at says where in a model a tape is.
type at struct {
	module string // inside of the module that the tape's context names
	layer  string // the path of the innermost layer around with a name, or of Tape.Module
}

// modulePlace is a module that a tape has been in.
type modulePlace struct {
	at
	of *places // nil: a closed tape's
	// contexts of the forward and of the backward pass; nil: not needed yet
	contexts [2]context.Context
}

// places are the modules that a tape has been in. They are kept for another tape, as its slab is.
type places struct {
	modules map[at]*modulePlace
	all     []*modulePlace       // of modules, and for those to come
	paths   map[[3]string]string // of names.Part, by its arguments; of earlier tapes, too
}

// mostPaths is how many paths are kept for another tape.
const mostPaths = 4096

var allPlaces = sync.Pool{New: func() any { return &places{modules: make(map[at]*modulePlace), paths: make(map[[3]string]string)} }}

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
func (p *places) place(at at) *modulePlace {
	if n := len(p.modules); n == len(p.all) {
		p.all = append(p.all, new(modulePlace))
	}
	m := p.all[len(p.modules)]
	m.at, m.of = at, p
	p.modules[at] = m
	return m
}

// joined is names.Part, which makes each name once.
func (p *places) joined(outer, part, layer string) string {
	if layer == "" && (outer == "" || part == "") {
		return outer + part
	}
	key := [3]string{outer, part, layer}
	path, ok := p.paths[key]
	if !ok {
		path = names.Part(outer, part, layer)
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
	to := t.part(name, "")
	to.layer = memcache.ModulePath(to.module)
	defer t.setModule(t.enterModule(to))
	return f()
}

// part is a part of where the tape is.
func (t *Tape) part(name, layer string) at {
	return at{t.joined(t.module.module, name, layer), t.module.layer}
}

// enterModule makes the tape be in a module, and returns the one it was in.
func (t *Tape) enterModule(to at) (before *modulePlace) {
	before = t.module
	if to != before.at && t.state != "closed" {
		m := t.modules[to]
		if m == nil {
			m = t.place(to)
		}
		t.setModule(m)
	}
	return before
}

// setModule makes the tape be in a module that it has been in before. A tape that was closed
// meanwhile, which has given its places to another one, stays where it is.
func (t *Tape) setModule(m *modulePlace) {
	if t.none() || m.of != t.places {
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
// The module is the one in which the parameter p is called local.
//
// A layer whose parameters have no names yet, or names from elsewhere in the model, as tied weights
// have, is in the tape's module. Elsewhere is what is outside of the innermost layer around that has
// a name, and what has another local name. Where there is no such layer, a layer with nothing but
// weights of another one, which calls them the same, can't be told from that one.
func (t *Tape) Enter(p *Parameter, local string) Entered {
	var e Entered
	if path, ok := p.Module(local); ok && !t.none() && names.Inside(path, t.module.layer) {
		e = t.EnterLayer(path, p.layer)
	} else {
		e = t.EnterLayer("", "")
	}
	if !t.none() {
		e.scope, e.scoped = t.open(), true
	}
	return e
}

// EnterLayer is Enter for a layer that holds others or reads its arguments as an operation does, so
// that [Variable.Once] of them counts. The path is that in the model, as the names of parameters
// have it; "" is the whole model, and leaves a tape in its module that is in one. The type may be
// "". See [Parameter.PathOf].
func (t *Tape) EnterLayer(path, layer string) Entered {
	e := Entered{tape: t}
	if t.none() {
		return e
	}
	e.module = t.module
	switch to := (at{t.module.module, path}); {
	case path == "" && (layer == "" || t.module.at != at{}) || path != "" && path == t.module.layer:
	case layer == "" && memcache.ModulePath(to.module) == path:
		t.enterModule(to)
	default:
		to.module = t.joined("", path, layer)
		t.enterModule(to)
	}
	return e
}

// EnterPart begins a part of the tape's module, by its name and type, such as a layer of a chain;
// see [Tape.Module].
func (e Entered) EnterPart(name, layer string) Entered {
	part := Entered{tape: e.tape}
	if !e.tape.none() {
		part.module = e.tape.enterModule(e.tape.part(name, layer))
	}
	return part
}

// Around returns the path of the innermost layer with a name, or of the [Tape.Module], that the tape
// was in before; "" is the whole model.
func (e Entered) Around() string {
	if e.tape.none() {
		return ""
	}
	return e.module.layer
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

// PathOf returns the path of a layer, by the pointer of its [Holder], if it holds the parameter by the
// parameter's name. held reports whether the parameter knows which layers do.
func (p *Parameter) PathOf(layer any) (path string, held, ok bool) {
	if p == nil {
		return "", false, false
	}
	for h := p.holder; h != nil; h = h.Inner {
		if h.Layer == layer {
			path, ok = p.Module(h.Local)
			break
		}
	}
	return path, p.holder != nil, ok
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
		l.Category = category
		if in := t.module.module; in != "" {
			l.Module = t.joined(l.Module, memcache.ModulePath(in), names.Layer(in))
		}
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
