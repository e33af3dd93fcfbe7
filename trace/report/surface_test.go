package report

import (
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/surface"
	"github.com/cistern-ml/cistern/memcache"
)

// surfaceOf returns the whole package, with valid arguments.
func surfaceOf(t *testing.T) *surface.Surface {
	s := stacktest.New(t, stacktest.Config{Capacity: 64 << 20})
	return &surface.Surface{
		T:         t,
		Functions: map[string]any{"CheckWhatIf": CheckWhatIf, "FromCache": FromCache, "Read": Read, "Write": Write},
		Receivers: map[string]func() any{"Report": func() any { return new(Report) }},
		Allowed: map[string]string{"FromCache 2[].Peak": "the step has no holders of its peak",
			"FromCache 3.OutOfMemory": "the page is of no error", "Read 3.OutOfMemory": "the same"},
		Valid: func(typ reflect.Type) any {
			switch typ {
			case reflect.TypeFor[io.Writer]():
				return io.Discard
			case reflect.TypeFor[*memcache.Cache]():
				return s.Cache
			case reflect.TypeFor[io.Reader]():
				return strings.NewReader("{}")
			}
			return nil
		},
	}
}

// Nothing panics on a nil argument.
func TestNilArguments(t *testing.T) { surfaceOf(t).Nil() }

// Numbers near the limits of their types are errors, or figures like others.
func TestExtremeArguments(t *testing.T) { surfaceOf(t).Extreme(1, 100, 64<<20) }
