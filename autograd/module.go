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
// time, and allocates with that module's context. A node keeps its module, and its backward step
// runs in it. Names come from three sources: Tape.Module, the numbers of a Sequential, and the
// names of a layer's parameters, which an optimiser has set. So a model of structs has PyTorch's
// names without any code for them in its Forward.

// at is a tape's position in a model.
type at struct {
	module string // relative to the module of the tape's context
	layer  string // the path of the innermost enclosing layer with a name, or of Tape.Module
}

// modulePlace is a module that a tape has entered.
type modulePlace struct {
	at
	of *places // nil: a closed tape's
	// contexts of the forward and of the backward pass; nil: not needed yet
	contexts [2]context.Context
}

// places holds the modules that a tape has entered. Another tape reuses it, like a slab.
type places struct {
	modules map[at]*modulePlace
	all     []*modulePlace       // those of modules first, then free ones
	paths   map[[3]string]string // results of names.Part, by its arguments; also of earlier tapes
}

// mostPaths limits the paths that are kept for another tape.
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

// place adds a module that the tape enters for the first time.
func (p *places) place(at at) *modulePlace {
	if n := len(p.modules); n == len(p.all) {
		p.all = append(p.all, new(modulePlace))
	}
	m := p.all[len(p.modules)]
	m.at, m.of = at, p
	p.modules[at] = m
	return m
}

// joined is names.Part, but makes each name only once.
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

// Module calls f in a part of the tape's current module, and returns f's result. In profiles the
// allocations of f, and those of the backward steps of the operations in f, belong to that part
// ([memcache.WithModule]). Modules nest. With the name "" f stays in the current module.
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

// part returns the position of a part of the tape's current module.
func (t *Tape) part(name, layer string) at {
	return at{t.joined(t.module.module, name, layer), t.module.layer}
}

// enterModule moves the tape to a module, and returns the previous one.
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

// setModule moves the tape to a module that it has entered before. A tape that was closed since
// then does not move, because another tape may own its modules.
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

// Enter begins a layer, as [Tape.Layer] does, but frees nothing. It is for layers with several
// results. The layer's module is the one in which the parameter p has the name local.
//
// The tape stays in its current module if p has no name yet, or a name from elsewhere in the model,
// as tied weights have. A name is from elsewhere if it lies outside of the innermost enclosing
// layer that has a name, or if its local name differs. Without such an enclosing layer, a layer
// that has only weights of another one, under the same local names, is taken for that layer.
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

// EnterLayer is Enter for a layer that holds other layers, or that reads its arguments as an
// operation does: it opens no scope, so that [Variable.Once] of the arguments counts. path is the
// layer's path in the model, as in the names of parameters. "" is the whole model; a tape that is
// already in a module stays there. layer is the type, or "". See [Parameter.PathOf].
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

// Around returns the path of the innermost layer with a name, or of the [Tape.Module], that the
// tape was in before Enter; "" is the whole model.
func (e Entered) Around() string {
	if e.tape.none() {
		return ""
	}
	return e.module.layer
}

// Leave returns the tape to the module and the scope that it was in before Enter.
func (e Entered) Leave() {
	switch {
	case e.tape.none():
		return
	case e.scoped:
		e.tape.setScope(e.scope)
	}
	e.tape.setModule(e.module)
}

// PathOf returns the path of a layer, given as the pointer in its [Holder]. ok reports whether that
// layer holds the parameter, by the parameter's name. held reports whether the parameter's holders
// are known.
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

// Module returns the path of the layer in which the parameter's name is local. With places it
// returns the path of the chain that has this layer at these indices. ok is false if the
// parameter's name does not match.
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

// moduleContext returns the context for allocations in the current module and pass.
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

// Layer runs f as the Forward of a nn.Layer, and returns f's result. The caller keeps the values
// that exist: no operation in f frees or overwrites them. At the end of f, Layer frees all values
// that f has made, except the result, as [Tape.Frame] does. In profiles f runs in the layer's
// module. The module's name is that of p, a parameter of the layer, without the local name, such as
// "weight" (see nn.NameModules). If p is nil or has no name, f runs in the tape's module. After an
// error of the tape f is not called. A call makes no Go objects. See [Tape.Enter] for several
// results.
//
//	func (l *Gated) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
//		return t.Layer(l.Weight, "weight", func() *autograd.Variable {
//			gate := t.Sigmoid(t.Linear(x, t.Param(l.Gate), nil))
//			return t.Mul(t.Linear(x, t.Param(l.Weight), nil), gate)
//		})
//	}
func (t *Tape) Layer(p *Parameter, local string, f func() *Variable) *Variable {
	if t.Err() != nil {
		return t.inert()
	}
	defer t.Enter(p, local).Leave()
	return t.framed("Layer", f)
}
