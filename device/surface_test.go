package device_test

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/surface"
)

// surfaceOf calls the whole package with valid arguments.
func surfaceOf(t *testing.T) *surface.Surface {
	dev, err := host.New(host.Config{Capacity: 1 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return &surface.Surface{
		T: t,
		Functions: map[string]any{
			"Drivers": device.Drivers, "LaunchingHooks": device.LaunchingHooks, "NewID": device.NewID, "Open": device.Open,
		},
		Receivers: map[string]func() any{
			"CollectiveError": func() any { return new(device.CollectiveError) },
			"Copy2D":          func() any { return new(device.Copy2D) },
			"DataType":        func() any { return device.Float32 },
			"Error":           func() any { return new(device.Error) },
			"EventPool":       func() any { return new(device.EventPool) },
			"ReduceOp":        func() any { return device.ReduceSum },
		},
		Without: map[string]string{"Register": "it panics, as sql.Register does"},
		Valid: func(typ reflect.Type) any {
			if typ == reflect.TypeFor[device.Event]() {
				e, err := dev.NewEvent(device.EventOptions{})
				require.NoError(t, err)
				return e
			}
			return nil
		},
		Allowed: map[string]string{"LaunchingHooks 1[]": "hooks that are nil are left out"},
	}
}

// TestNilArguments: nothing panics on a nil argument or in a zero value.
func TestNilArguments(t *testing.T) {
	surfaceOf(t).Nil()
	_, err := new(device.EventPool).Get()
	require.ErrorIs(t, err, device.ErrInvalid)
}

// TestFormat: formatted values are short and true, and formatting does not race with changes.
func TestFormat(t *testing.T) {
	s := surfaceOf(t)
	s.Format(map[string]string{"EventPool": "the owner keeps it to itself", "Copy2D": "addresses are what it is about"}, nil)
}
