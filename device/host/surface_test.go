package host

import (
	"context"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/surface"
)

// surfaceOf calls the whole package, including the device's streams, events, graphs and
// communicators, with valid arguments.
func surfaceOf(t *testing.T) *surface.Surface {
	dev, err := New(Config{Capacity: 64 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { dev.Close() })
	s, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	e, err := dev.NewEvent(device.EventOptions{Timed: true})
	require.NoError(t, err)
	p, err := dev.Alloc(4096)
	require.NoError(t, err)
	pinned, err := dev.AllocPinned(4096)
	require.NoError(t, err)
	id, err := dev.NewCommunicatorID()
	require.NoError(t, err)
	comm, err := dev.NewCommunicator(t.Context(), id, 0, 1, device.CommunicatorOptions{})
	require.NoError(t, err)
	graph := func() device.Graph {
		c := s.(device.GraphCapturer)
		require.NoError(t, c.BeginCapture())
		require.NoError(t, s.Memset(p, 1, 64))
		g, err := c.EndCapture()
		require.NoError(t, err)
		t.Cleanup(func() { g.Close() })
		return g
	}
	g := graph()
	reuse := func(v any) func() any { return func() any { return v } }
	return &surface.Surface{
		T:         t,
		Functions: map[string]any{"New": New},
		Receivers: map[string]func() any{
			"Device": reuse(dev), "Stream": reuse(s), "Event": reuse(e), "Graph": reuse(g), "Communicator": reuse(comm),
		},
		Without: map[string]string{
			"Device.Close": "it would end the device", "Stream.Close": "as Device.Close", "Event.Close": "as Device.Close", "Graph.Close": "as Device.Close",
			"Communicator.Close": "as Device.Close", "Communicator.Abort": "as Device.Close", "Device.Fail": "the other calls would fail",
			"Device.AllocPinned":  "it allocates whatever the machine has",
			"Stream.BeginCapture": "what is queued later would be captured",
			"Communicator.Send":   "a single rank has no other one to send to", "Communicator.Recv": "as Communicator.Send",
		},
		Valid: func(typ reflect.Type) any {
			switch typ {
			case reflect.TypeFor[context.Context]():
				return t.Context()
			case reflect.TypeFor[device.Stream]():
				return s
			case reflect.TypeFor[device.Event]():
				return e
			case reflect.TypeFor[device.Graph]():
				return g
			case reflect.TypeFor[device.Ptr]():
				return p
			case reflect.TypeFor[[]byte]():
				return pinned
			case reflect.TypeFor[int64]():
				return int64(64)
			case reflect.TypeFor[*device.Launch]():
				return &device.Launch{Func: func() {}, Writes: []device.Range{{Ptr: p, Bytes: 64}}}
			case reflect.TypeFor[*device.Copy2D]():
				return &device.Copy2D{Width: 8, Height: 8, Dst: p, DstPitch: 8, SrcHost: pinned, SrcPitch: 8}
			case reflect.TypeFor[func()](), reflect.TypeFor[func(error)]():
				return reflect.MakeFunc(typ, func([]reflect.Value) []reflect.Value { return nil }).Interface()
			}
			return nil
		},
		Allowed: map[string]string{
			"Device.NewStream 1.Launching": "nothing is called before launches",
		},
		Done: func(_ string, result any) {
			switch v := result.(type) {
			case device.Stream:
				if v != s {
					require.NoError(t, v.Close())
				}
			case *Device:
				if v != dev {
					require.NoError(t, v.Close())
				}
			case device.Ptr:
				_ = dev.Free(v) // or from MappedPtr, or reserved
				_ = dev.Unreserve(v)
			case []byte:
				_ = dev.FreePinned(v)
			}
		},
	}
}

// TestNilArguments: nothing panics on a nil argument.
func TestNilArguments(t *testing.T) { surfaceOf(t).Nil() }

// TestExtremeArguments: sizes and addresses near the limits of their types are errors, without
// overflow or huge allocations.
func TestExtremeArguments(t *testing.T) { surfaceOf(t).Extreme(1, 500, 256<<20) }

// TestFormat: formatted values are short and true, and formatting does not race with changes.
func TestFormat(t *testing.T) {
	s := surfaceOf(t)
	dev := s.Receivers["Device"]().(*Device)
	s.Format(map[string]string{}, func() {
		if p, err := dev.Alloc(64); err == nil {
			_ = dev.Free(p)
		}
	})
}
