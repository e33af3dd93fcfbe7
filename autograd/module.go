package autograd

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"weak"

	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// Profiles show memory by the module that made it (memcache.Label). A tape is in one module at a time, whose context its
// allocations have; a recorded operation remembers its module, and its backward step runs there. Names come from three
// places: the program says Tape.Module, a Sequential numbers its layers, and a layer knows itself by the names of its
// parameters, which an optimiser has told them. So a model of structs has PyTorch's names without a word in its Forward.

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
	chain   [4]int                  // room for the places of a layer in chains
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
		path = join(outer, inner)
		if p.paths != nil { // a closed tape has none
			p.paths[key] = path
		}
	}
	return path
}

// NameModules tells a model's parameters and buffers their names, as [ParametersOf] and [BuffersOf] find them, so that
// profiles show memory by PyTorch's names of the modules. Optimisers do so for their parameters, and [LoadStateDict] for all:
// it is for programs that have neither. In profiles the name that was told last counts.
func NameModules(model any) error {
	if model == nil {
		return fmt.Errorf("autograd: NameModules: %w: the model is nil", ErrInvalid)
	}
	params, buffers := modelState(model)
	known := make(map[any]bool) // of several names for one the first counts, as for optimisers
	for _, p := range params {
		if known[p.Parameter] {
			continue
		}
		known[p.Parameter] = true
		if err := p.unusable(); err != nil {
			return fmt.Errorf("autograd: NameModules: parameter %q: %w", p.Name, err)
		}
		if err := p.setName(p.Name); err != nil {
			return fmt.Errorf("autograd: NameModules: parameter %q: %w", p.Name, err)
		}
	}
	for _, b := range buffers {
		if known[b.Tensor] {
			continue
		}
		known[b.Tensor] = true
		if err := nameBuffer(b.Tensor, b.Name); err != nil {
			return fmt.Errorf("autograd: NameModules: buffer %q: %w", b.Name, err)
		}
	}
	return nil
}

// modulesBefore are the modules that buffers were made in, by weak.Pointer[tensor.Tensor], since they were told a name. A
// parameter remembers its own; a buffer is a tensor of the program's.
var modulesBefore sync.Map

// nameBuffer tells a buffer how the model calls it, as setName tells a parameter.
func nameBuffer(b *tensor.Tensor, name string) error {
	if b.Released() {
		return nil
	}
	l, key := b.Label(), weak.Make(b)
	before, told := modulesBefore.LoadOrStore(key, l.Module)
	if !told {
		runtime.AddCleanup(b, func(key weak.Pointer[tensor.Tensor]) { modulesBefore.Delete(key) }, key)
	}
	known := l
	l.Module, l.Category = join(before.(string), moduleName(name)), memcache.CategoryParameter
	if l == known {
		return nil
	}
	return b.SetLabel(l)
}

// Module calls f, and what is allocated meanwhile, and in the backward pass of what f records, belongs in profiles to a part,
// by its name, of the module that the tape is in ([memcache.WithModule]). Modules nest; "" is no part of its own. The
// result is f's.
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

// setModule makes the tape be in a module that it has been in before. A tape that was closed meanwhile, which has given its places to another
// one, stays where it is.
func (t *Tape) setModule(m *modulePlace) {
	if t.none() || t.modules[m.path] != m {
		return
	}
	t.module = m
	t.ctx = t.moduleContext()
}

// enterLayer makes the tape be in the module of a layer that has the parameter p and calls it by its local name. A layer
// whose parameters have no names yet, or names from elsewhere in the model, as tied weights have, is where the tape is.
// Elsewhere is what is not inside of the module that the tape is in, and what has another local name. Where the tape is in
// no module, a layer with nothing but weights of another one, which calls them the same, can't be told from that one.
func (t *Tape) enterLayer(p *Parameter, local string) (before *modulePlace) {
	path, ok := p.owner(local)
	return t.enterPath(path, ok)
}

func (t *Tape) enterPath(path string, ok bool) (before *modulePlace) {
	if t.none() {
		return nil
	}
	if here := t.module.path; !ok || here != "" && !strings.HasPrefix(path, here+".") {
		return t.module
	}
	return t.enterModule(path)
}

// owner is the path of the layer that calls the parameter by a local name, if the parameter's name says so; or of the chain in which that layer is at
// these places.
func (p *Parameter) owner(local string, at ...int) (path string, ok bool) {
	if p == nil {
		return "", false
	}
	path, ok = strings.CutSuffix(p.name, local)
	for i := len(at) - 1; ok && i >= 0; i-- {
		if path, ok = strings.CutSuffix(path, "."); ok {
			path, ok = strings.CutSuffix(path, strconv.Itoa(at[i]))
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

// withLabel is ctx for memory of a category, of a part of the module that ctx names.
func withLabel(ctx context.Context, c memcache.Category, module string) context.Context {
	l := memcache.LabelOf(ctx)
	l.Category, l.Module = c, join(l.Module, module)
	return memcache.WithLabel(ctx, l)
}

// moduleName is the module that a parameter belongs to by its name.
func moduleName(parameter string) string {
	return parameter[:max(0, strings.LastIndexByte(parameter, '.'))]
}

// enterChain is enterLayer for a chain of layers, which has the module that the first parameter in it tells.
func (t *Tape) enterChain(s Sequential) (before *modulePlace) {
	path, ok, _ := s.ownModule(t.chain[:0])
	return t.enterPath(path, ok)
}

// ownModule is the module of a chain by the first parameter that knows it by the layer's name for it. s is in the chain at these places, each in the one
// before. found is whether there is one: there is none, too, if it is behind one that has no name yet, or if a walk over a model would have to find it.
func (s Sequential) ownModule(at []int) (path string, ok, found bool) {
	for i, inner := range s {
		if path, ok, found = ownModule(inner, append(at, i)); found {
			return path, ok, true
		}
	}
	return "", false, false
}

// ownModule is that of the layer at these places.
func ownModule(l Layer, at []int) (path string, ok, found bool) {
	switch l := l.(type) {
	case nil, module:
		return "", false, false
	case Sequential:
		return l.ownModule(at)
	}
	var room [2]Named
	for _, n := range ownParameters(l, room[:0]) {
		if path, ok = n.owner(n.Name, at...); ok || n.Parameter != nil && n.name == "" {
			return path, ok, true
		}
	}
	return "", false, false
}

// ownParameters are the parameters of a layer, in room if it is one of those that most models are of: they are asked in each step.
func ownParameters(l Layer, room Parameters) Parameters {
	switch l := l.(type) {
	case *Linear:
		if l != nil {
			return append(room, Named{"weight", l.Weight}, Named{"bias", l.Bias})
		}
	case *Convolution:
		if l != nil {
			return append(room, Named{"weight", l.Weight}, Named{"bias", l.Bias})
		}
	}
	return l.Parameters()
}
