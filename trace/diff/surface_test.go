package diff

import (
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/surface"
)

// surfaceOf is the whole package, with valid arguments.
func surfaceOf(t *testing.T) *surface.Surface {
	return &surface.Surface{
		T:         t,
		Functions: map[string]any{"Read": Read, "Write": Write},
		Receivers: map[string]func() any{"Diff": func() any { return new(Diff) }, "Row": func() any { return Row{} }},
		Valid: func(typ reflect.Type) any {
			switch typ {
			case reflect.TypeFor[io.Writer]():
				return io.Discard
			case reflect.TypeFor[File]():
				return File{Name: "file", Reader: strings.NewReader(`{"step":1}`)}
			case reflect.TypeFor[*Diff]():
				return new(Diff)
			}
			return nil
		},
	}
}

// Nothing panics on a nil argument.
func TestNilArguments(t *testing.T) { surfaceOf(t).Nil() }

// Numbers near the limits of their types are errors, or figures like others.
func TestExtremeArguments(t *testing.T) { surfaceOf(t).Extreme(1, 100, 64<<20) }
