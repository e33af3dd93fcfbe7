package torchsnapshot

import (
	"io"
	"reflect"
	"testing"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/surface"
)

// surfaceOf is the whole package, with valid arguments.
func surfaceOf(t *testing.T) *surface.Surface {
	return &surface.Surface{
		T:         t,
		Functions: map[string]any{"Write": Write},
		Allowed:   map[string]string{"Write 2[].Config.Observer": "the cache is not observed"},
		Valid: func(typ reflect.Type) any {
			switch typ {
			case reflect.TypeFor[io.Writer]():
				return io.Discard
			}
			return nil
		},
	}
}

// Nothing panics on a nil argument.
func TestNilArguments(t *testing.T) { surfaceOf(t).Nil() }

// Numbers near the limits of their types are errors, or figures like others.
func TestExtremeArguments(t *testing.T) { surfaceOf(t).Extreme(1, 100, 64<<20) }
