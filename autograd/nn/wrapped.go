package nn

import (
	"reflect"

	"github.com/cistern-ml/cistern/autograd"
)

// Wrapped is what a layer embeds that changes how another one runs, and not what it has: parameters
// and buffers are the other one's, by the same names.
type Wrapped struct{ Layer }

func (l Wrapped) wrapped() Layer { return l.Layer }

// Parameters are the layer's.
func (l Wrapped) Parameters() autograd.Parameters { return parametersIn(l) }

// Buffers are the layer's.
func (l Wrapped) Buffers() []NamedTensor { return buffersOf(l, true).buffers }

// onlyHolds reports whether a type has the layers alone that it holds: a chain, or one that embeds
// Wrapped itself.
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
