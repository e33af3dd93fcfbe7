package live

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/surface"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// surfaceOf is the whole package, with valid arguments.
func surfaceOf(t *testing.T) *surface.Surface {
	s := stacktest.New(t, stacktest.Config{Capacity: 64 << 20})
	h, err := New(Config{Cache: s.Cache})
	require.NoError(t, err)
	return &surface.Surface{
		T:         t,
		Functions: map[string]any{"New": New},
		Receivers: map[string]func() any{
			"Handler": func() any { return h },
		},
		Without: map[string]string{"Handler.ServeHTTP": "net/http calls it"},
		Valid: func(typ reflect.Type) any {
			switch typ {
			case reflect.TypeFor[*memcache.Cache]():
				return s.Cache
			case reflect.TypeFor[*transfer.Pool]():
				return s.Pool
			case reflect.TypeFor[Config]():
				return Config{Cache: s.Cache, Pool: s.Pool, Steps: 1}
			case reflect.TypeFor[http.ResponseWriter]():
				return httptest.NewRecorder()
			case reflect.TypeFor[*http.Request]():
				return httptest.NewRequest("GET", "/", nil)
			}
			return nil
		},
		Allowed: map[string]string{"New 1.Pool": "the pages of pinned memory are left out", "New 1.Allocated": "the heap profile lacks what was handed out"},
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
	s.Format(map[string]string{"Handler": "its String is an expvar.Var's, all figures as JSON"}, nil)
}
