package nn

import (
	"reflect"

	"github.com/cistern-ml/cistern/autograd"
)

// Wrapped is embedded in a layer that changes only how another layer runs. Parameters and buffers
// are those of the other layer, under the same names.
type Wrapped struct{ Layer }

func (l Wrapped) wrapped() Layer { return l.Layer }

// Parameters are the layer's.
func (l Wrapped) Parameters() autograd.Parameters { return parametersIn(l) }

// Buffers are the layer's.
func (l Wrapped) Buffers() []NamedTensor { return buffersOf(l, true).buffers }

// onlyHolds reports whether a type has nothing but the layers that it holds: a chain, or a type
// that directly embeds Wrapped.
func onlyHolds(t reflect.Type) bool {
	wrapped := reflect.TypeFor[Wrapped]()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == wrapped || t == reflect.TypeFor[Sequential]() {
		return true
	}
	if t.Kind() != reflect.Struct {
		return false
	}
	f, ok := t.FieldByName("Wrapped")
	return ok && f.Type == wrapped && len(f.Index) == 1
}
