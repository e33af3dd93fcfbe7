package nn

import (
	"fmt"
	"runtime"
	"sync"
	"weak"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/names"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// NameModules sets the names of a model's parameters and buffers, as [ParametersOf] and [BuffersOf]
// find them, so that profiles show memory by PyTorch's names of the modules. Optimisers do so for
// their parameters, and [LoadWeights] for all; other programs call NameModules. In profiles the
// last name counts.
func NameModules(model any) error {
	if model == nil {
		return fmt.Errorf("nn: NameModules: %w: the model is nil", autograd.ErrInvalid)
	}
	params, buffers := ModelState(model)
	layers := parametersOf(model, true).layers
	known := make(map[any]bool) // the first of a tensor's names counts, as for optimisers
	for _, p := range params {
		if known[p.Parameter] {
			continue
		}
		known[p.Parameter] = true
		if err := p.Err(); err != nil {
			return fmt.Errorf("nn: NameModules: parameter %q: %w", p.Name, err)
		}
		if err := p.SetName(); err != nil {
			return fmt.Errorf("nn: NameModules: parameter %q: %w", p.Name, err)
		}
	}
	for _, b := range buffers {
		if known[b.Tensor] {
			continue
		}
		known[b.Tensor] = true
		if err := nameBuffer(b.Tensor, b.Name, layers[names.Module(b.Name)]); err != nil {
			return fmt.Errorf("nn: NameModules: buffer %q: %w", b.Name, err)
		}
	}
	return nil
}

// modulesBefore has the modules in which named buffers were made, by weak.Pointer[tensor.Tensor]. A
// parameter keeps its own, but a buffer is only a tensor.
var modulesBefore sync.Map

// nameBuffer sets the name of a buffer in the model, as [autograd.Named.SetName] does for a
// parameter.
func nameBuffer(b *tensor.Tensor, name, layer string) error {
	if b.Released() {
		return nil
	}
	l, key := b.Label(), weak.Make(b)
	before, told := modulesBefore.LoadOrStore(key, l.Module)
	if !told {
		runtime.AddCleanup(b, func(key weak.Pointer[tensor.Tensor]) { modulesBefore.Delete(key) }, key)
	}
	known := l
	l.Module, l.Category = names.Holder(before.(string), name, layer), memcache.CategoryParameter
	if l == known {
		return nil
	}
	return b.SetLabel(l)
}
