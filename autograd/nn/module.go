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

// NameModules tells a model's parameters and buffers their names, as [ParametersOf] and [BuffersOf]
// find them, so that profiles show memory by PyTorch's names of the modules. Optimisers do so for
// their parameters, and [LoadStateDict] for all: it is for programs that have neither. In profiles
// the name that was told last counts.
func NameModules(model any) error {
	if model == nil {
		return fmt.Errorf("nn: NameModules: %w: the model is nil", autograd.ErrInvalid)
	}
	params, buffers := ModelState(model)
	known := make(map[any]bool) // of several names for one the first counts, as for optimisers
	for _, p := range params {
		if known[p.Parameter] {
			continue
		}
		known[p.Parameter] = true
		if err := p.Err(); err != nil {
			return fmt.Errorf("nn: NameModules: parameter %q: %w", p.Name, err)
		}
		if err := p.SetName(p.Name); err != nil {
			return fmt.Errorf("nn: NameModules: parameter %q: %w", p.Name, err)
		}
	}
	for _, b := range buffers {
		if known[b.Tensor] {
			continue
		}
		known[b.Tensor] = true
		if err := nameBuffer(b.Tensor, b.Name); err != nil {
			return fmt.Errorf("nn: NameModules: buffer %q: %w", b.Name, err)
		}
	}
	return nil
}

// modulesBefore are the modules that buffers were made in, by weak.Pointer[tensor.Tensor], since
// they were told a name. A parameter remembers its own; a buffer is a tensor of the program's.
var modulesBefore sync.Map

// nameBuffer tells a buffer how the model calls it, as [autograd.Parameter.SetName] tells a
// parameter.
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
	l.Module, l.Category = names.Join(before.(string), names.Module(name)), memcache.CategoryParameter
	if l == known {
		return nil
	}
	return b.SetLabel(l)
}

// first returns a parameter of the chain that knows the chain's name, how its layer calls it, and the
// places of that layer, each in the one before. The chain is at these places. There is none if the
// first parameter has no name yet, or if a walk over a model would have to find it.
func (s Sequential) first(at []int) (p *autograd.Parameter, local string, places []int) {
	p, local, places, _ = s.find(at)
	return p, local, places
}

func (s Sequential) find(at []int) (p *autograd.Parameter, local string, places []int, found bool) {
	for i, inner := range s {
		places := append(at, i)
		switch l := inner.(type) {
		case nil, module:
			continue
		case Sequential:
			if p, local, places, found = l.find(places); found {
				return p, local, places, true
			}
			continue
		}
		var room [2]autograd.Named
		for _, n := range ownParameters(inner, room[:0]) {
			if _, ok := n.Module(n.Name, places...); ok {
				return n.Parameter, n.Name, places, true
			}
			if n.Parameter != nil && n.Parameter.Name() == "" {
				return nil, "", nil, true
			}
		}
	}
	return nil, "", nil, false
}

// ownParameters are the parameters of a layer, in room if it is one of those that most models are
// of: they are asked in each step.
func ownParameters(l Layer, room autograd.Parameters) autograd.Parameters {
	switch l := l.(type) {
	case *Linear:
		if l != nil {
			return append(room, autograd.Named{Name: "weight", Parameter: l.Weight}, autograd.Named{Name: "bias", Parameter: l.Bias})
		}
	case *Convolution:
		if l != nil {
			return append(room, autograd.Named{Name: "weight", Parameter: l.Weight}, autograd.Named{Name: "bias", Parameter: l.Bias})
		}
	}
	return l.Parameters()
}
