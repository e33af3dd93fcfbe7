package record

import (
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
		Functions: map[string]any{"Start": Start},
		Receivers: map[string]func() any{
			"Mark":     func() any { return new(Mark) },
			"Recorder": func() any { return new(Recorder) },
		},
		Without: map[string]string{"Recorder.Close": "Start makes a Recorder that can be closed"},
		Valid: func(typ reflect.Type) any {
			switch typ {
			case reflect.TypeFor[io.Writer]():
				return io.Discard
			case reflect.TypeFor[*memcache.Cache]():
				return s.Cache
			}
			return nil
		},
		Done: func(_ string, result any) {
			if r, ok := result.(*Recorder); ok {
				_ = r.Close()
			}
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
	s.Format(map[string]string{"Mark": "it is ended, and not printed"}, nil)
}
