package trace

import (
	"context"
	"io"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/surface"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// surfaceOf is the whole package, with valid arguments.
func surfaceOf(t *testing.T) *surface.Surface {
	f := newFixture(t, Config{})
	id, err := f.dev.NewCommunicatorID()
	require.NoError(t, err)
	inner, err := f.dev.NewCommunicator(t.Context(), id, 0, 1, device.CommunicatorOptions{})
	require.NoError(t, err)
	comm, err := f.tracer.Communicator(t.Context(), inner)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, comm.Close()) })
	profiler, err := NewProfiler(ProfilerConfig{Cache: f.cache, Pool: f.pool, Stream: f.stream, Tracer: f.tracer})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, profiler.Close()) })
	return &surface.Surface{
		T:         t,
		Functions: map[string]any{"New": New, "NewProfiler": NewProfiler},
		Receivers: map[string]func() any{
			"Communicator": func() any { return comm },
			"Detail":       func() any { return new(Detail) },
			"IDGenerator":  func() any { return IDGenerator{} },
			"KernelTimer":  func() any { return new(KernelTimer) },
			"Profiler":     func() any { return profiler },
			"Step": func() any {
				_, s := profiler.StartStep(t.Context(), 1)
				t.Cleanup(func() { s.End() })
				return s
			},
			"StepProfile": func() any { return StepProfile{} },
			"Summary":     func() any { return Summary{} },
			"Tracer":      func() any { return f.tracer },
			"memory":      func() any { return f.tracer.Memory() },
			"transfer":    func() any { return f.tracer.Transfer() },
		},
		Without: map[string]string{
			"Communicator.Close": "it would end the communicator", "Communicator.Abort": "as Communicator.Close", "Profiler.Close": "it would end the profiler",
			"Tracer.Close":      "it would end the tracer",
			"Communicator.Send": "a single rank has no other one to send to", "Communicator.Recv": "as Communicator.Send",
		},
		Valid: func(typ reflect.Type) any {
			switch typ {
			case reflect.TypeFor[context.Context]():
				return t.Context()
			case reflect.TypeFor[*memcache.Cache]():
				return f.cache
			case reflect.TypeFor[*transfer.Pool]():
				return f.pool
			case reflect.TypeFor[device.Stream]():
				return f.stream
			case reflect.TypeFor[device.Communicator]():
				return inner
			case reflect.TypeFor[io.Writer]():
				return io.Discard
			case reflect.TypeFor[ProfilerConfig]():
				return ProfilerConfig{Cache: f.cache, Pool: f.pool, Stream: f.stream, Tracer: f.tracer}
			}
			return nil
		},
		Allowed: map[string]string{
			"New 1.TracerProvider": "the global one", "New 1.MeterProvider": "the global one", "New 1.LoggerProvider": "the global one",
			"NewProfiler 1.Pool": "the bytes copied are 0", "NewProfiler 1.Stream": "steps have no device time", "NewProfiler 1.Kernels": "no busy time",
			"NewProfiler 1.Communicator": "there are no ranks", "NewProfiler 1.Tracer": "there are no spans", "NewProfiler 1.Starting": "nothing is called", "NewProfiler 1.OnProfile": "profiles are summed up only",
		},
		Done: func(_ string, result any) {
			switch v := result.(type) {
			case memcache.Operation:
				v.End(memcache.OpInfo{})
			case transfer.Operation:
				v.End(transfer.OpInfo{})
			case *Profiler:
				require.NoError(t, v.Close())
			case *Tracer:
				require.NoError(t, v.Close())
			case *Step:
				v.End()
			case func() error:
				require.NoError(t, v())
			}
		},
	}
}

// Nothing panics on a nil argument.
func TestNilArguments(t *testing.T) { surfaceOf(t).Nil() }

// Numbers near the limits of their types are errors, or figures like others.
func TestExtremeArguments(t *testing.T) { surfaceOf(t).Extreme(1, 100, 64<<20) }

// What fmt prints is short and true, and no race with what changes the value.
func TestFormat(t *testing.T) {
	s := surfaceOf(t)
	profiler := s.Receivers["Profiler"]().(*Profiler)
	s.Format(map[string]string{"memory": "an observer is given to a cache, and not printed", "transfer": "as memory"}, func() {
		_, step := profiler.StartStep(t.Context(), 1)
		step.End()
	})
}
