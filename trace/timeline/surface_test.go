package timeline

import (
	"context"
	"io"
	"reflect"
	"testing"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/surface"
	"github.com/cistern-ml/cistern/memcache"
)

// surfaceOf is the whole package, with valid arguments.
func surfaceOf(t *testing.T) *surface.Surface {
	r := newRig(t)
	return &surface.Surface{
		T:         t,
		Functions: map[string]any{"New": New},
		Receivers: map[string]func() any{
			"Timeline": func() any { return r.tl },
			"transfer": func() any { return r.tl.Transfer() },
			"Memory":   func() any { return r.tl.Memory() },
		},
		Without: map[string]string{"Timeline.Close": "it would end the timeline", "Timeline.SetEnabled": "the other calls would do nothing"},
		Valid: func(typ reflect.Type) any {
			switch typ {
			case reflect.TypeFor[context.Context]():
				return t.Context()
			case reflect.TypeFor[io.Writer]():
				return io.Discard
			case reflect.TypeFor[*memcache.Cache]():
				return r.Cache
			case reflect.TypeFor[device.Stream]():
				return r.stream
			}
			return nil
		},
		Done: func(_ string, result any) {
			switch v := result.(type) {
			case *Timeline:
				_ = v.Close()
			case func(error):
				v(nil)
			case func():
				v()
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
	tl := s.Receivers["Timeline"]().(*Timeline)
	s.Format(map[string]string{"transfer": "an observer is given to a pool, and not printed"}, func() {
		tl.SetEnabled(false)
		tl.SetEnabled(true)
	})
}
