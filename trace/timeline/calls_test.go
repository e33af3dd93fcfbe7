package timeline

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/trace"
)

// runtime is a tensor runtime on the rig. The timeline sees its operations.
func (r *rig) runtime() *tensor.Runtime {
	r.t.Helper()
	if _, ok := r.Dev.(device.HostVisible); !ok {
		r.t.Skip("kernels have other names")
	}
	rt, err := tensor.NewRuntime(r.Cache, r.Pool, r.stream, tensor.OnOperation(r.tl.Operation))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, rt.Close()) })
	return rt
}

// in returns the context of a module in a pass.
func in(ctx context.Context, module string, c memcache.Category) context.Context {
	return memcache.WithCategory(memcache.WithModule(ctx, module), c)
}

// requireArrows: each kernel has an arrow from a slice of the host that began before it, and has
// the name of the operation. It returns the slices in the kernels' order.
func requireArrows(t *testing.T, events, kernels []read) (calls []read) {
	t.Helper()
	begins := map[int64]read{}
	for _, e := range onName(events, "launch") {
		if e.Phase == "s" {
			begins[e.ID] = e
			continue
		}
		s := begins[e.ID]
		for _, k := range kernels {
			if k.Pid == e.Pid && k.Tid == e.Tid && k.TS == e.TS {
				for _, c := range events {
					if c.Kind == "operation" && c.Tid == s.Tid && c.TS <= s.TS && s.TS < c.TS+c.Dur {
						calls = append(calls, c)
					}
				}
			}
		}
	}
	require.Len(t, calls, len(kernels))
	return calls
}

// TestKernelsOfModel: the kernels of a model's steps have the label, name and shapes of their
// operation, although all of them run after the host has ended the last step, and are inside of
// their steps.
func TestKernelsOfModel(t *testing.T) {
	r := newRig(t)
	rt := r.runtime()
	profiler, err := trace.NewProfiler(trace.ProfilerConfig{Cache: r.Cache, Stream: r.stream, OnProfile: r.tl.Step, Starting: r.tl.Starting})
	require.NoError(t, err)
	x, err := rt.Zeros(t.Context(), tensor.Float32, 2, 3)
	require.NoError(t, err)
	w, err := rt.Zeros(t.Context(), tensor.Float32, 3, 4)
	require.NoError(t, err)
	require.NoError(t, r.stream.Synchronize(t.Context()))
	release := cisterntest.Hold(t, r.Stream)
	held, err := r.Dev.NewEvent(device.EventOptions{})
	require.NoError(t, err)
	require.NoError(t, errors.Join(r.Stream.Record(held), r.stream.Wait(held)))

	type truth struct {
		name string
		args map[string]any
	}
	var want []truth
	for n := int64(1); n <= 3; n++ {
		ctx, step := profiler.StartStep(t.Context(), n)
		y, err := rt.MatMul(in(ctx, "encoder.0", memcache.CategoryActivation), x, w)
		require.NoError(t, err)
		z, err := rt.MulScalar(in(ctx, "encoder.1", memcache.CategoryGradient), y, 2)
		require.NoError(t, err)
		require.NoError(t, rt.AddInPlace(ctx, z, y))
		require.NoError(t, r.stream.Launch(&device.Launch{Name: "own", Func: func() {}}))
		require.NoError(t, errors.Join(y.Release(), z.Release()))
		step.End()
		number := float64(n)
		want = append(want,
			truth{"matmul", map[string]any{"operation": "matmul", "shapes": "float32[2,4] = float32[2,3], float32[3,4]", "module": "encoder.0", "pass": "forward", "step": number}},
			truth{"mul scalar", map[string]any{"operation": "mul scalar", "shapes": "float32[2,4] = float32[2,4]", "module": "encoder.1", "pass": "backward", "step": number}},
			truth{"add", map[string]any{"operation": "add", "shapes": "float32[2,4] = float32[2,4], float32[2,4]", "step": number}},
			truth{"own", nil})
	}
	ended := r.tl.now()
	release()
	require.NoError(t, errors.Join(profiler.Close(), r.tl.Flush(t.Context()), held.Close(), x.Release(), w.Release()))
	require.NoError(t, r.tl.Close())
	events := parse(t, r.out.bytes())
	stream := fmt.Sprintf("stream %d", r.stream.ID())
	kernels := on(events, r.Dev.Name(), stream, "X")
	kernels = kernels[len(kernels)-len(want):] // after those of the tensors
	var got []truth
	for _, k := range kernels {
		got = append(got, truth{k.Name, k.Args})
		require.GreaterOrEqual(t, k.TS, float64(ended)/1e3, "the host had ended the steps")
	}
	require.Equal(t, want, got)
	for i, call := range requireArrows(t, events, kernels) {
		require.Equal(t, want[i].name, call.Name)
		require.Equal(t, want[i].args["module"], call.Args["module"])
		require.Equal(t, want[i].args["pass"], call.Args["pass"])
	}
	steps := on(events, r.Dev.Name(), "steps on "+stream, "X")
	require.Equal(t, []string{"step 1", "step 2", "step 3"}, names(steps))
	requireInside(t, steps, kernels, 4)
	layers := names(on(events, program, "layers", "X"))
	require.Equal(t, []string{"encoder.0 forward", "encoder forward", "encoder.1 backward", "encoder backward"}, layers[:4])
}

// requireInside requires that each step has a number of the kernels, and that they are inside of
// it.
func requireInside(t *testing.T, steps, kernels []read, each int) {
	t.Helper()
	const rounding = 1e-3 // of microseconds in a float64
	require.Len(t, kernels, each*len(steps))
	for i, k := range kernels {
		s := steps[i/each]
		require.GreaterOrEqual(t, k.TS, s.TS-rounding)
		require.LessOrEqual(t, k.TS+k.Dur, s.TS+s.Dur+rounding)
	}
}

// TestReplays: a replay is one slice, with the graph's operations.
func TestReplays(t *testing.T) {
	r := newRig(t)
	rt := r.runtime()
	x, err := rt.Zeros(t.Context(), tensor.Float32, 2, 3)
	require.NoError(t, err)
	g, err := rt.Capture(t.Context(), func(ctx context.Context) error {
		return errors.Join(rt.MulScalarInPlace(ctx, x, 2), rt.AddInPlace(ctx, x, x), rt.MulScalarInPlace(ctx, x, 3))
	})
	require.NoError(t, err)
	ctx := memcache.WithStep(t.Context(), 7)
	require.NoError(t, errors.Join(g.Replay(ctx), g.Replay(ctx), r.tl.Flush(t.Context()), g.Close(), x.Release()))
	require.NoError(t, r.tl.Close())
	if invariants.Enabled { // which overwrite memory that is freed
		return
	}
	events := parse(t, r.out.bytes())
	replays := kernelsOf(events, "replay of a graph of 3 nodes")
	require.Len(t, replays, 2)
	for i, call := range requireArrows(t, events, replays) {
		require.Equal(t, map[string]any{"operations": "mul scalar 2, add 1", "step": 7.0}, replays[i].Args)
		require.Equal(t, "replay of a graph of 3 nodes", call.Name)
	}
	require.Empty(t, onName(events, "mul scalar"))
}

// TestOperationsOfSeveral: while two operations are open on a stream, a kernel belongs to none.
// Kernels of other streams belong to theirs, and so do later kernels when one of the two has ended.
func TestOperationsOfSeveral(t *testing.T) {
	r := newRig(t)
	b := r.alloc(t.Context(), 100)
	other, err := r.Dev.NewStream(device.StreamOptions{Launching: r.tl.Launching})
	require.NoError(t, err)
	begin := func(s device.Stream, module string) func() {
		return r.tl.Operation(memcache.WithModule(t.Context(), module), s, module, nil)
	}
	first := begin(r.stream, "first")
	elsewhere := begin(other, "elsewhere")
	r.launch("of first", b, func() {})
	second := begin(r.stream, "second")
	r.launch("of none", b, func() {})
	first()
	r.launch("of second", b, func() {})
	second()
	elsewhere()
	r.launch("of nothing", b, func() {})
	require.Empty(t, r.tl.open)
	require.NoError(t, errors.Join(r.tl.Close(), other.Close(), b.Free()))
	events := parse(t, r.out.bytes())
	for name, module := range map[string]any{"of first": "first", "of second": "second", "of none": nil, "of nothing": nil} {
		k := kernelsOf(events, name)
		require.Len(t, k, 1)
		require.Equal(t, module, k[0].Args["module"], name)
		call := requireArrows(t, events, k)[0]
		if module == nil {
			require.Equal(t, name, call.Name, "a launch by itself")
		} else {
			require.Equal(t, module, call.Name)
		}
	}
}

// TestOperationsOff: the timeline ignores operations while it is off, and ends one that began
// before. A launch that failed is not drawn, and keeps no lane.
func TestOperationsOff(t *testing.T) {
	r := newRig(t)
	queued := r.tl.Operation(t.Context(), r.stream, "seen", nil)
	r.tl.SetEnabled(false)
	require.Nil(t, r.tl.Operation(t.Context(), r.stream, "unseen", nil))
	require.Nil(t, r.tl.Starting(r.stream, 1))
	queued()
	require.Nil(t, r.tl.Operation(t.Context(), nil, "of no stream", nil))
	r.tl.SetEnabled(true)
	r.tl.Launching(r.stream, "refused")(errors.New("refused"))
	r.tl.Launching(r.stream, "launched")(nil)
	require.NoError(t, r.tl.Close())
	require.Equal(t, []string{"seen", "launched"}, names(on(parse(t, r.out.bytes()), program, "operations", "X")))
}

// TestArrowsGoForward: this also holds for a kernel that, by its device's coarse clock, began
// before its launch.
func TestArrowsGoForward(t *testing.T) {
	out := &sink{}
	tl, err := New(out)
	require.NoError(t, err)
	c := tl.alone("kernel")
	launched := tl.now()
	tl.launched(c, nil)
	early := reading{from: launched - 300, to: launched + 200}
	tl.kernel(&queue{process: "gpu", group: "stream 1"}, kernel{name: "kernel", launched: launched, call: c}, early)
	require.NoError(t, tl.Close())
	k := kernelsOf(parse(t, out.bytes()), "kernel")
	require.Len(t, k, 1)
	require.InDelta(t, 0.5, k[0].Dur, 1e-6, "it took as long as it did")
}
