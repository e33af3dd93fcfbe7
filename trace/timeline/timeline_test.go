package timeline

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

// TestProgram: steps, layers, kernels, copies and counters of a program with one goroutine match
// its actions.
func TestProgram(t *testing.T) {
	r := newRig(t)
	profiler, err := trace.NewProfiler(trace.ProfilerConfig{Cache: r.Cache, Pool: r.Pool, OnProfile: r.tl.Step})
	require.NoError(t, err)
	var allocated, active, reserved []float64
	note := func() {
		st := r.Cache.Stats()
		allocated = append(allocated, float64(st.AllocatedBytes.All.Current))
		for _, c := range []struct {
			list *[]float64
			v    int64
		}{{&active, st.ActiveBytes.All.Current}, {&reserved, st.ReservedBytes.All.Current}} {
			if n := len(*c.list); n == 0 || (*c.list)[n-1] != float64(c.v) {
				*c.list = append(*c.list, float64(c.v))
			}
		}
	}
	pinned, err := r.Pool.Get(t.Context(), 4096)
	require.NoError(t, err)
	var blocks []memcache.Block
	for n := range int64(5) {
		ctx, step := profiler.StartStep(memcache.WithStep(t.Context(), n+1), n+1)
		for _, module := range []string{"embed", "encoder.0", "encoder.0.mlp", "encoder.1", ""} {
			ctx := memcache.WithModule(memcache.WithCategory(ctx, memcache.Category(n)), module)
			b := r.alloc(ctx, 1+n*300_000)
			note()
			blocks = append(blocks, b)
			r.launch("kernel "+module, b, func() { time.Sleep(10 * time.Microsecond) })
		}
		h, err := r.Pool.H2D(memcache.WithModule(ctx, "input"), r.stream, blocks[len(blocks)-1], 0, pinned, 0, 1)
		require.NoError(t, err)
		require.NoError(t, h.Wait(t.Context()))
		for len(blocks) > 8 {
			require.NoError(t, blocks[0].RecordStream(r.Stream))
			require.NoError(t, blocks[0].Free())
			note()
			blocks = blocks[1:]
		}
		step.End()
	}
	require.NoError(t, profiler.Close())
	require.NoError(t, pinned.Release())
	cisterntest.WaitFor(t, func() bool { // the pool reports a copy after its waiters continue
		require.NoError(t, r.tl.Flush(t.Context()))
		return bytes.Count(r.out.bytes(), []byte(`"name":"h2d"`)) == 5
	})
	require.NoError(t, r.tl.Close())
	events := parse(t, r.out.bytes())
	dev := r.Dev.Name()

	steps := on(events, program, "steps", "X")
	require.Equal(t, []string{"step 1", "step 2", "step 3", "step 4", "step 5"}, names(steps))
	for i, s := range steps {
		require.EqualValues(t, 5, s.Args["allocations"])
		require.EqualValues(t, i+1, s.Args["step"])
		require.True(t, i == 0 || s.TS >= steps[i-1].TS+steps[i-1].Dur-1e-3)
	}

	var layers []string
	for _, l := range on(events, program, "layers", "X") {
		in := slices.IndexFunc(steps, func(s read) bool { return l.TS >= s.TS-1e-3 && l.TS+l.Dur <= s.TS+s.Dur+1e-3 })
		require.GreaterOrEqual(t, in, 0, "a layer is in its step")
		require.Equal(t, steps[in].Args["step"], l.Args["step"])
		if in == 0 {
			layers = append(layers, l.Name)
		}
	}
	require.Equal(t, []string{"embed", "encoder.0.mlp", "encoder.0", "encoder.1", "encoder"}, layers, "in the order of their ends")

	kernels := on(events, dev, fmt.Sprintf("stream %d", r.stream.ID()), "X")
	require.Len(t, kernels, 25)
	for i, k := range kernels {
		require.Equal(t, "kernel "+[]string{"embed", "encoder.0", "encoder.0.mlp", "encoder.1", ""}[i%5], k.Name)
		require.Greater(t, k.Dur, 9.0, "it slept 10 µs")
		require.GreaterOrEqual(t, k.TS, steps[i/5].TS, "it can't run before it is launched")
	}
	copies := on(events, dev, fmt.Sprintf("stream %d copies", r.stream.ID()), "X")
	require.Len(t, copies, 5)
	for i, c := range copies {
		require.Equal(t, "h2d", c.Name)
		require.EqualValues(t, 1, c.Args["bytes"])
		require.Equal(t, "input", c.Args["module"])
		require.EqualValues(t, i+1, c.Args["step"])
	}
	require.Contains(t, names(on(events, program, "transfer", "X")), "pinned_alloc")
	require.Contains(t, names(on(events, program, "allocator", "X")), "driver_alloc")

	require.Equal(t, allocated, counter(events, "memory allocated"))
	require.Equal(t, active, counter(events, "memory active"))
	require.Equal(t, reserved, counter(events, "memory reserved"))
	requireSums(t, events)
	last := onName(events, "memory by category")
	for c := memcache.Category(0); c < categories; c++ {
		var want int64
		for _, s := range r.Cache.Profile().Holdings {
			if s.Category == c {
				want += s.Bytes
			}
		}
		require.EqualValues(t, want, last[len(last)-1].Args[c.String()], c)
	}
	for _, b := range blocks {
		require.NoError(t, b.Free())
	}
}

// TestSeveralGoroutines: counters, layers and kernels of several at once are in one order.
func TestSeveralGoroutines(t *testing.T) {
	r := newRig(t)
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			ctx := memcache.WithCategory(memcache.WithModule(t.Context(), fmt.Sprintf("part.%d", i)), memcache.Category(i+1))
			for range 100 {
				b, err := r.Cache.Alloc(ctx, 1+rnd.Int64N(100_000), r.stream)
				if err == nil {
					err = r.stream.Launch(&device.Launch{Name: "k", Func: func() {}, Writes: []device.Range{b.Range(0, b.Size())}})
				}
				if err = errors.Join(err, b.Free()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	if _, ok := r.Dev.(device.HostVisible); !ok {
		t.Skip("the kernels are Go functions")
	}
	group.Wait()
	require.NoError(t, r.tl.Close())
	events := parse(t, r.out.bytes())
	requireSums(t, events)
	all := counter(events, "memory allocated")
	require.Len(t, all, 800)
	require.Zero(t, all[len(all)-1])
	require.Len(t, on(events, r.Dev.Name(), fmt.Sprintf("stream %d", r.stream.ID()), "X"), 400)
	require.NotEmpty(t, on(events, program, "layers", "X"))
}

// TestOff: nothing is written, and allocated bytes are counted.
func TestOff(t *testing.T) {
	r := newRig(t)
	r.tl.SetEnabled(false)
	a := r.alloc(memcache.WithCategory(t.Context(), memcache.CategoryParameter), 512)
	b := r.alloc(t.Context(), 1024)
	r.launch("unseen", a, func() {})
	r.tl.Step(trace.StepProfile{Step: 1})
	r.tl.SetEnabled(true)
	require.NoError(t, b.Free())
	r.launch("seen", a, func() {})
	r.tl.SetEnabled(false)
	require.NoError(t, a.Free())
	require.NoError(t, r.tl.Flush(t.Context()))
	require.NoError(t, r.tl.Close())
	events := parse(t, r.out.bytes())
	require.Equal(t, []float64{512}, counter(events, "memory allocated"))
	require.EqualValues(t, 512, onName(events, "memory by category")[0].Args["parameter"])
	require.Empty(t, onName(events, "unseen"))
	require.Len(t, kernelsOf(events, "seen"), 1)
	require.Empty(t, on(events, program, "steps", "X"))
}

// TestStepsAreReportedLate: a step that overlaps a time in which the timeline was on is written
// even if it is reported while it is off, and no other step is.
func TestStepsAreReportedLate(t *testing.T) {
	out := &sink{}
	tl, err := New(out)
	require.NoError(t, err)
	at := func(n int64, from, to time.Time) trace.StepProfile {
		return trace.StepProfile{Step: n, Start: from, HostTime: to.Sub(from)}
	}
	var told []trace.StepProfile
	for n := range int64(5) {
		from := time.Now()
		tl.SetEnabled(n%2 == 0)
		tl.SetEnabled(n%2 == 0)
		tl.SetEnabled(false)
		told = append(told, at(n, from, time.Now()))
	}
	for range 2 * mostPeriods {
		tl.SetEnabled(true)
		tl.SetEnabled(false)
	}
	for _, p := range told[3:] {
		tl.Step(p)
	}
	require.LessOrEqual(t, len(tl.periods), mostPeriods)
	require.NoError(t, tl.Close())
	require.Empty(t, on(parse(t, out.bytes()), program, "steps", "X"), "they are too late")

	out = &sink{}
	tl, err = New(out)
	require.NoError(t, err)
	told = nil
	for n := range int64(5) {
		from := time.Now()
		tl.SetEnabled(n%2 == 0)
		tl.SetEnabled(false)
		told = append(told, at(n, from, time.Now()))
	}
	for _, p := range told {
		tl.Step(p)
	}
	require.NoError(t, tl.Close())
	require.Equal(t, []string{"step 0", "step 2", "step 4"}, names(on(parse(t, out.bytes()), program, "steps", "X")))
}

// TestLabelsSetLater: a block's bytes move to the category of its new label, also while the
// timeline is off.
func TestLabelsSetLater(t *testing.T) {
	r := newRig(t)
	a, b := r.alloc(t.Context(), 512), r.alloc(t.Context(), 1024)
	require.NoError(t, a.SetLabel(memcache.Label{Category: memcache.CategoryParameter}))
	require.NoError(t, a.SetLabel(memcache.Label{Module: "head", Category: memcache.CategoryParameter}))
	r.tl.SetEnabled(false)
	require.NoError(t, b.SetLabel(memcache.Label{Category: memcache.CategoryInput}))
	r.tl.SetEnabled(true)
	require.NoError(t, a.Free())
	require.Error(t, a.SetLabel(memcache.Label{Category: memcache.CategoryInput}))
	require.NoError(t, b.Free())
	require.NoError(t, r.tl.Close())
	var got [][3]any
	for _, e := range onName(parse(t, r.out.bytes()), "memory by category") {
		got = append(got, [3]any{e.Args["other"], e.Args["parameter"], e.Args["input"]})
	}
	require.Equal(t, [][3]any{{512.0, 0.0, 0.0}, {1536.0, 0.0, 0.0}, {1024.0, 512.0, 0.0}, {0.0, 0.0, 1024.0}, {0.0, 0.0, 0.0}}, got)
}

// TestStepsThatOverlap: they are on separate lanes, and a failed one is named so.
func TestStepsThatOverlap(t *testing.T) {
	out := &sink{}
	tl, err := New(out)
	require.NoError(t, err)
	begin := time.Now()
	tl.Step(trace.StepProfile{Step: 1, Start: begin, HostTime: 10 * time.Second})
	tl.Step(trace.StepProfile{Step: 2, Start: begin.Add(time.Second), HostTime: 10 * time.Second, Failed: true})
	tl.Step(trace.StepProfile{Step: 3, Start: begin.Add(10 * time.Second), HostTime: time.Second, DeviceTimed: true, DeviceTime: 5})
	require.NoError(t, tl.Close())
	require.NoError(t, tl.Close())
	events := parse(t, out.bytes())
	require.Equal(t, []string{"step 1", "step 3"}, names(on(events, program, "steps", "X")))
	require.Equal(t, []string{"step 2 (failed)"}, names(on(events, program, "steps (2)", "X")))
	require.EqualValues(t, 5, onName(events, "step 3")[0].Args["device time in ns"])
	tl.Step(trace.StepProfile{Step: 4, Start: begin})
	require.Len(t, parse(t, out.bytes()), len(events), "after Close nothing is written")
}

// TestActive: a block that waits for a stream is active, and no longer allocated.
func TestActive(t *testing.T) {
	r := newRig(t)
	b := r.alloc(t.Context(), 3*mib)
	release := cisterntest.Hold(t, r.Stream)
	require.NoError(t, b.RecordStream(r.Stream))
	require.NoError(t, b.Free())
	release()
	require.NoError(t, r.tl.Close())
	events := parse(t, r.out.bytes())
	require.Equal(t, []float64{3 * mib, 0}, counter(events, "memory allocated"))
	require.Equal(t, []float64{3 * mib}, counter(events, "memory active"))
	require.Equal(t, []float64{20 * mib}, counter(events, "memory reserved"))
}

// TestFailures: a failure is an event with its error, and counts no memory.
func TestFailures(t *testing.T) {
	r := newRig(t)
	_, err := r.Cache.Alloc(memcache.WithModule(t.Context(), "head"), 1<<40, r.stream)
	require.ErrorIs(t, err, memcache.ErrOutOfMemory)
	b := r.alloc(t.Context(), 100)
	require.NoError(t, b.Free())
	require.ErrorIs(t, b.Free(), memcache.ErrFreed)
	require.Error(t, r.stream.Launch(&device.Launch{Name: "wrong"}))
	require.NoError(t, r.tl.Close())
	events := parse(t, r.out.bytes())
	failed := onName(events, "alloc (failed)")
	require.Len(t, failed, 1)
	require.Equal(t, "head", failed[0].Args["module"])
	require.EqualValues(t, int64(1)<<40, failed[0].Args["requested"])
	require.Equal(t, []float64{512, 0}, counter(events, "memory allocated"))
	require.Empty(t, onName(events, "wrong"))
	require.NotEmpty(t, onName(events, "driver_alloc (failed)"))
	require.Empty(t, onName(events, "alloc_failed (failed)"), "it is there once")
}

// TestTwoCaches: the counters of two caches of one device are separate.
func TestTwoCaches(t *testing.T) {
	r := newRig(t)
	second := r.tl.Memory()
	cache, err := memcache.New(r.Dev, memcache.Config{Observer: second})
	require.NoError(t, err)
	second.Watch(cache)
	a := r.alloc(t.Context(), 512)
	b, err := cache.Alloc(t.Context(), 1024, r.stream)
	require.NoError(t, err)
	require.NoError(t, a.Free())
	require.NoError(t, b.Free())
	require.NoError(t, r.tl.Close())
	events := parse(t, r.out.bytes())
	require.Equal(t, []float64{512, 0}, counter(events, "memory allocated"))
	require.Equal(t, []float64{1024, 0}, counter(events, "memory allocated (2)"))
	require.Len(t, onName(events, "memory by category (2)"), 2)
	require.Equal(t, []float64{2 * mib}, counter(events, "memory reserved (2)"))
	require.Equal(t, "memory (2)", onName(events, "memory allocated (2)")[0].lane)
	require.NoError(t, cache.Close())
}

// TestStepBeforeTimeline: of a step that began before the timeline only the part after its start is
// drawn.
func TestStepBeforeTimeline(t *testing.T) {
	out := &sink{}
	tl, err := New(out)
	require.NoError(t, err)
	tl.Step(trace.StepProfile{Step: 1, Start: tl.start.Add(-4 * time.Second), HostTime: 6 * time.Second})
	tl.Step(trace.StepProfile{Step: 2, Start: tl.start.Add(2 * time.Second), HostTime: time.Second})
	require.NoError(t, tl.Close())
	steps := on(parse(t, out.bytes()), program, "steps", "X")
	require.Equal(t, []string{"step 1", "step 2"}, names(steps), "on one lane: they do not overlap")
	require.Equal(t, []float64{0, 2e6}, []float64{steps[0].TS, steps[0].Dur})
}

// TestFreesAreNotSpans: a free or a new label waits for no span of another goroutine.
func TestFreesAreNotSpans(t *testing.T) {
	r := newRig(t)
	b := r.alloc(t.Context(), 512)
	r.tl.mu.Lock()
	err := errors.Join(b.SetLabel(memcache.Label{Category: memcache.CategoryInput}), b.Free())
	r.tl.mu.Unlock()
	require.NoError(t, err)
	require.NoError(t, r.tl.Close())
	require.Equal(t, []float64{512, 512, 0}, counter(parse(t, r.out.bytes()), "memory allocated"))
}
