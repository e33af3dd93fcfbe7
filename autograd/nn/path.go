package nn

import (
	"reflect"
	"sync"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/names"
)

// A layer that holds others finds its path in the model, for profiles, by a parameter: the path is
// the parameter's name without the name that the layer has for it.

// anchors are the parameters of a model by the model's own names, which a walk finds once.
type anchors struct {
	once   sync.Once
	params autograd.Parameters
}

func (a *anchors) of(model any) autograd.Parameters {
	a.once.Do(func() { a.params = ParametersOf(model) })
	return a.params
}

// search is for the path of a layer that holds others. Where no parameter knows it as its holder, as
// with a method Parameters that joins names by itself, the first name that ends as the layer's own
// counts, if the path is in the layer that the tape is in.
type search struct {
	self    any    // the layer, as a holder
	around  string // the path of the layer that the tape is in
	path    string
	found   bool
	unnamed bool // the parameters have no names yet
}

// layer searches in a layer that stands at these places, each in the chain of the one before, and
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

// enter begins the layer, of this type, at its path.
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

// unwrapped is the layer in wrappers.
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

// typeName is the name of a layer's type, that of the model for [LayerOf] and [With].
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
