package nn

import (
	"reflect"
	"sync"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/names"
)

// A layer that holds others finds its path in the model, for profiles, by a parameter: the path is
// the parameter's name without its local name in the layer.

// anchors are the parameters of a model under the model's own names. A walk finds them once.
type anchors struct {
	once   sync.Once
	params autograd.Parameters
}

func (a *anchors) of(model any) autograd.Parameters {
	a.once.Do(func() { a.params = ParametersOf(model) })
	return a.params
}

// search finds the path of a layer that holds others. If no parameter has the layer among its
// holders, as with a method Parameters that joins names by itself, the first name that ends with
// the layer's own name counts, if the path is inside of the layer that the tape is in.
type search struct {
	self    any    // the layer, as a holder
	around  string // the path of the layer that the tape is in
	path    string
	found   bool
	unnamed bool // the parameters have no names yet
}

// layer searches in a layer at these places, each an index into the chain at the one before, and
// reports whether the search is over.
func (s *search) layer(l Layer, places []int) (over bool) {
	var ps autograd.Parameters
	var room [2]autograd.Named
	switch l := unwrapped(l).(type) {
	case nil:
	case Sequential:
		return s.chain(l, places)
	case *module:
		ps = l.anchors.of(l.model)
	default:
		ps = ownParameters(l, room[:0])
	}
	for _, p := range ps {
		path, held, ok := p.PathOf(s.self)
		if ok {
			s.path, s.found = path, true
			return true
		}
		if p.Parameter != nil && p.Parameter.Name() == "" {
			s.unnamed = true
			return true
		}
		if path, ok = p.Module(p.Name, places...); ok && !s.found && names.Inside(path, s.around) {
			if s.path, s.found = path, true; !held {
				return true
			}
		}
	}
	return false
}

// enter begins the layer at its path. layer is its type.
func (s *search) enter(t *autograd.Tape, layer string) autograd.Entered {
	if !s.found {
		return t.EnterLayer("", "")
	}
	return t.EnterLayer(s.path, layer)
}

func (s *search) chain(l Sequential, places []int) (over bool) {
	for i := 0; i < len(l) && !over; i++ {
		over = s.layer(l[i], append(places, i))
	}
	return over
}

// unwrapped returns the layer inside of its wrappers.
func unwrapped(l Layer) Layer {
	for range maxDepth {
		w, ok := l.(interface{ wrapped() Layer })
		if !ok {
			break
		}
		l = w.wrapped()
	}
	return l
}

// typeName returns the name of a layer's type; for [LayerOf] and [With] that of the model.
func typeName(l any) string {
	for range maxDepth {
		if layer, ok := l.(Layer); ok {
			l = unwrapped(layer)
		}
		m, ok := l.(*module)
		if !ok {
			break
		}
		l = m.model
	}
	if l == nil {
		return ""
	}
	return nameOf(reflect.TypeOf(l))
}

func nameOf(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Name()
}

// ownParameters returns the parameters of a layer. For the most common layers it appends them to
// room, because each step calls it.
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
