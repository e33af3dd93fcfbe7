package ranks

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
		Functions: map[string]any{"Read": Read, "ReadFiles": ReadFiles},
		Receivers: map[string]func() any{
			"Merger": func() any { return new(Merger) },
			"Report": func() any { return new(Report) },
		},
		Valid: func(typ reflect.Type) any {
			switch typ {
			case reflect.TypeFor[io.Writer]():
				return io.Discard
			case reflect.TypeFor[File]():
				return File{Name: "profile", Reader: strings.NewReader("")}
			}
			return nil
		},
	}
}

// Nothing panics on a nil argument.
func TestNilArguments(t *testing.T) { surfaceOf(t).Nil() }

// Numbers near the limits of their types are errors, or figures like others.
func TestExtremeArguments(t *testing.T) { surfaceOf(t).Extreme(1, 100, 64<<20) }

// The text that fmt prints is short and true, and reading it does not race with changes of the
// value.
func TestFormat(t *testing.T) {
	s := surfaceOf(t)
	s.Format(map[string]string{}, nil)
}
