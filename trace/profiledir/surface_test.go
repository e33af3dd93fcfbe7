package profiledir

import (
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/surface"
	"github.com/cistern-ml/cistern/memcache"
)

// surfaceOf is the whole package, with valid arguments.
func surfaceOf(t *testing.T) *surface.Surface {
	s := stacktest.New(t, stacktest.Config{Capacity: 64 << 20})
	d, err := New(t.TempDir(), Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return &surface.Surface{
		T:         t,
		Functions: map[string]any{"New": New, "NewStepLog": NewStepLog},
		Receivers: map[string]func() any{
			"Dir":     func() any { return d },
			"Step":    func() any { return d.Step(2) },
			"StepLog": func() any { return new(StepLog) },
			"StepSet": func() any { return new(StepSet) },
		},
		Without: map[string]string{"Dir.Close": "TestFilesOfSteps calls it"},
		Valid: func(typ reflect.Type) any {
			switch typ {
			case reflect.TypeFor[*memcache.Cache]():
				return s.Cache
			case reflect.TypeFor[device.Stream]():
				return s.Stream
			case reflect.TypeFor[string]():
				return filepath.Join(t.TempDir(), "x")
			}
			return nil
		},
		Done: func(_ string, result any) {
			if c, ok := result.(interface{ Close() error }); ok {
				_ = c.Close()
			}
		},
	}
}

// Nothing panics on a nil argument.
func TestNilArguments(t *testing.T) { surfaceOf(t).Nil() }

// Numbers near the limits of their types are errors, or numbers like others.
func TestExtremeArguments(t *testing.T) { surfaceOf(t).Extreme(1, 100, 64<<20) }
