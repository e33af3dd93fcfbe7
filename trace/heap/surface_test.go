package heap

import (
	"context"
	"io"
	"reflect"
	"testing"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/surface"
	"github.com/cistern-ml/cistern/memcache"
)

// surfaceOf is the whole package, with valid arguments.
func surfaceOf(t *testing.T) *surface.Surface {
	s := stacktest.New(t, stacktest.Config{Capacity: 64 << 20})
	return &surface.Surface{
		T:         t,
		Functions: map[string]any{"Of": Of},
		Receivers: map[string]func() any{
			"Counter": func() any { return new(Counter) },
			"Heap":    func() any { return Of(s.Cache) },
		},
		Valid: func(typ reflect.Type) any {
			switch typ {
			case reflect.TypeFor[context.Context]():
				return t.Context()
			case reflect.TypeFor[io.Writer]():
				return io.Discard
			case reflect.TypeFor[*memcache.Cache]():
				return s.Cache
			}
			return nil
		},
	}
}

// Nothing panics on a nil argument.
func TestNilArguments(t *testing.T) { surfaceOf(t).Nil() }

// The text that fmt prints is short and true, and reading it does not race with changes of the
// value.
func TestFormat(t *testing.T) {
	s := surfaceOf(t)
	s.Format(map[string]string{"Heap": "it is written, and not printed"}, nil)
}
