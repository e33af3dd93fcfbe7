package autograd

import (
	"context"
	"fmt"
	"strings"

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

// NameModules tells a model's parameters and buffers their names, as [ParametersOf] and [BuffersOf] find them, so that
// profiles show memory by PyTorch's names of the modules. Optimisers do so for their parameters, and [LoadStateDict] for all:
// it is for programs that have neither. In profiles a
// parameter keeps the first name it was told.
func NameModules(model any) error {
	params, buffers := modelState(model)
	for _, p := range params {
		if err := p.unusable(); err != nil {
			return fmt.Errorf("autograd: NameModules: parameter %q: %w", p.Name, err)
		}
		if err := p.setName(p.Name); err != nil {
			return fmt.Errorf("autograd: NameModules: parameter %q: %w", p.Name, err)
		}
	}
	for _, b := range buffers {
		if err := nameBuffer(b.Tensor, moduleName(b.Name)); err != nil {
			return fmt.Errorf("autograd: NameModules: buffer %q: %w", b.Name, err)
		}
	}
	return nil
}

// nameBuffer tells a buffer its module, unless it knows it.
func nameBuffer(b *tensor.Tensor, module string) error {
	if b.Released() {
		return nil
	}
	l := b.Label()
	if module == "" || l.Module == module || strings.HasSuffix(l.Module, "."+module) {
		return nil
	}
	l.Module, l.Category = join(l.Module, module), memcache.CategoryParameter
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
	defer t.setModule(t.enterModule(join(t.module.path, name)))
	return f()
}

// enterModule makes the tape be in a module, by its path, and returns the one it was in.
func (t *Tape) enterModule(path string) (before *modulePlace) {
	before = t.module
	if path != before.path {
		m := t.modules[path]
		if m == nil {
			m = &modulePlace{path: path}
			t.modules[path] = m
		}
		t.setModule(m)
	}
	return before
}

// setModule makes the tape be in a module that it has been in before.
func (t *Tape) setModule(m *modulePlace) {
	t.module = m
	t.ctx = t.moduleContext()
}

// enterLayer makes the tape be in the module of a layer that has the parameter p, whose name has so many parts of its own
// behind the layer's. A layer whose parameters have no names yet, or names from elsewhere in the model, as tied weights
// have, is where the tape is.
func (t *Tape) enterLayer(p *Parameter, parts int) (before *modulePlace) {
	if p == nil || p.name == "" {
		return t.module
	}
	path := p.name
	for range parts {
		path = path[:max(0, strings.LastIndexByte(path, '.'))]
	}
	if here := t.module.path; here != "" && !strings.HasPrefix(path, here+".") {
		return t.module
	}
	return t.enterModule(path)
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
		l.Module, l.Category = join(l.Module, t.module.path), category
		*ctx = memcache.WithLabel(t.base, l)
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

// firstParameter is a parameter of a layer, by which it knows its name, and how many parts of the parameter's name are the
// layer's own; nil if it has none, or a walk over a model would have to find them.
func firstParameter(l Layer) (p *Parameter, parts int) {
	switch l := l.(type) {
	case nil, module:
	case Sequential:
		for _, inner := range l {
			if p, parts := firstParameter(inner); p != nil {
				return p, parts + 1
			}
		}
	default:
		if ps := l.Parameters(); len(ps) > 0 {
			return ps[0].Parameter, 1 + strings.Count(ps[0].Name, ".")
		}
	}
	return nil, 0
}
