package trace

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
)

// traveller is a rank of a test: a fixture with a communicator, memory and a context with a recording span.
type traveller struct {
	*fixture
	rank int
	comm *Communicator
	ctx  context.Context
	mem  memcache.Block
}

// journey makes ranks, each with a device of its own. An untraced rank has no Tracer.
func journey(t testing.TB, ranks int, timeout time.Duration, untraced ...int) []*traveller {
	t.Helper()
	var all []*traveller
	for rank := range ranks {
		f := newFixture(t, Config{})
		all = append(all, &traveller{fixture: f, rank: rank})
	}
	id, err := all[0].dev.NewCommunicatorID()
	require.NoError(t, err)
	each(t, all, func(r *traveller) error {
		inner, err := r.dev.NewCommunicator(t.Context(), id, r.rank, ranks, device.CommunicatorOptions{Timeout: timeout})
		if err != nil {
			return err
		}
		tracer := r.tracer
		for _, u := range untraced {
			if u == r.rank {
				tracer = nil
			}
		}
		r.ctx, _ = r.parent(t)
		r.comm, err = tracer.Communicator(r.ctx, inner)
		return err
	})
	for _, r := range all {
		r.mem = r.alloc(t, t.Context(), 1<<20)
		t.Cleanup(func() {
			_ = r.comm.Close()
			assert.NoError(t, r.mem.Free())
		})
	}
	return all
}

// communicator is one of a single rank.
func (f *fixture) communicator(t testing.TB) *Communicator {
	t.Helper()
	id, err := f.dev.NewCommunicatorID()
	require.NoError(t, err)
	inner, err := f.dev.NewCommunicator(t.Context(), id, 0, 1, device.CommunicatorOptions{})
	require.NoError(t, err)
	c, err := f.tracer.Communicator(t.Context(), inner)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

// each calls f for all ranks concurrently.
func each(t testing.TB, all []*traveller, f func(*traveller) error) {
	t.Helper()
	errs := make([]error, len(all))
	var wait sync.WaitGroup
	for i, r := range all {
		wait.Go(func() { errs[i] = f(r) })
	}
	wait.Wait()
	for i, err := range errs {
		require.NoError(t, err, "rank %d", i)
	}
}

// collectives returns the spans of operations, in their order.
func (f *fixture) collectives() (found []sdktrace.ReadOnlySpan) {
	for _, s := range f.spans.Ended() {
		if _, ok := attributes(s)[KeyCollective]; ok {
			found = append(found, s)
		}
	}
	return found
}

// TestCollectiveSpans compares random operations of several ranks with the definitions of sizes and
// bus bandwidth in NCCL's tests (PERFORMANCE.md there), in its words and not by our formula.
func TestCollectiveSpans(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	type kind struct {
		name string
		call func(r *traveller, count int64, dt device.DataType) error
		// The size S of which the algorithm bandwidth is S/t, in elements of count, and the bus
		// bandwidth as a fraction of that.
		size func(n int64) int64
		bus  func(n int64) (num, den int64)
	}
	one := func(int64) (int64, int64) { return 1, 1 }
	own, all := func(int64) int64 { return 1 }, func(n int64) int64 { return n }
	kinds := []kind{
		{"all_reduce", func(r *traveller, n int64, dt device.DataType) error {
			return r.comm.AllReduce(r.stream, r.mem.Ptr(), r.mem.Ptr(), n, dt, device.ReduceSum)
		}, own, func(n int64) (int64, int64) { return 2*n - 2, n }},
		{"broadcast", func(r *traveller, n int64, dt device.DataType) error {
			return r.comm.Broadcast(r.stream, r.mem.Ptr(), r.mem.Ptr(), n, dt, 0)
		}, own, one},
		{"all_gather", func(r *traveller, n int64, dt device.DataType) error {
			return r.comm.AllGather(r.stream, r.mem.Ptr(), r.mem.Ptr()+device.Ptr(int64(r.rank)*n*dt.Bytes()), n, dt)
		}, all, func(n int64) (int64, int64) { return n - 1, n }},
		{"reduce_scatter", func(r *traveller, n int64, dt device.DataType) error {
			return r.comm.ReduceScatter(r.stream, r.mem.Ptr()+device.Ptr(int64(r.rank)*n*dt.Bytes()), r.mem.Ptr(), n, dt, device.ReduceMax)
		}, all, func(n int64) (int64, int64) { return n - 1, n }},
		{"barrier", func(r *traveller, _ int64, _ device.DataType) error { return r.comm.Barrier(r.stream) }, nil, nil},
	}
	for n := 1; n <= 4; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			ranks := journey(t, n, time.Minute)
			type queued struct {
				kind  kind
				count int64
				dt    device.DataType
			}
			var program []queued
			for range 12 {
				program = append(program, queued{kinds[random.IntN(len(kinds))], random.Int64N(1000), device.DataType(random.IntN(5))})
			}
			each(t, ranks, func(r *traveller) error {
				for _, q := range program {
					if err := q.kind.call(r, q.count, q.dt); err != nil {
						return err
					}
				}
				return r.comm.Close()
			})
			for _, r := range ranks {
				spans := r.collectives()
				require.Len(t, spans, len(program))
				for i, q := range program {
					s, a := spans[i], attributes(spans[i])
					require.Equal(t, "cistern.collective."+q.kind.name, s.Name())
					want := map[attribute.Key]any{
						KeyDevice: "host", KeyStream: int64(r.stream.ID()), KeyCollective: q.kind.name, KeyCollectiveCalls: int64(1),
						KeyCollectiveNumber: int64(i + 1), KeyRank: int64(r.rank), KeyWorldSize: int64(n), KeyCollectiveSize: int64(0),
					}
					if q.kind.size != nil {
						want[KeyCollectiveType] = q.dt.String()
						want[KeyCollectiveSize] = q.count * q.kind.size(int64(n)) * q.dt.Bytes()
					}
					took := s.EndTime().Sub(s.StartTime()).Seconds()
					assert.GreaterOrEqual(t, took, 0.0)
					assert.GreaterOrEqual(t, a[KeyCollectiveQueued], 0.0)
					if size := want[KeyCollectiveSize].(int64); size > 0 && took > 0 {
						num, den := q.kind.bus(int64(n))
						assert.InEpsilon(t, float64(size)/took, a[KeyCollectiveBandwidth], 1e-6)
						assert.InDelta(t, float64(size*num)/float64(den)/took, a[KeyCollectiveBusBandwidth], 1e-6*float64(size)/took)
					}
					for _, k := range []attribute.Key{KeyCollectiveQueued, KeyCollectiveBandwidth, KeyCollectiveBusBandwidth} {
						delete(a, k)
					}
					assert.Equal(t, want, a)
				}
			}
		})
	}
}

// TestCollectiveWaits: an operation's span includes the wait for the last rank to arrive, which
// does not wait itself, and no earlier work of its stream.
func TestCollectiveWaits(t *testing.T) {
	ranks := journey(t, 3, time.Minute)
	const late = 50 * time.Millisecond
	release := cisterntest.Hold(t, ranks[1].stream)
	each(t, ranks, func(r *traveller) error {
		if r.rank == 1 {
			time.AfterFunc(late, release)
		}
		if err := r.comm.AllReduce(r.stream, r.mem.Ptr(), r.mem.Ptr(), 100, device.Float32, device.ReduceAvg); err != nil {
			return err
		}
		return r.comm.Close()
	})
	took := func(rank int) time.Duration {
		s := ranks[rank].collectives()[0]
		return s.EndTime().Sub(s.StartTime())
	}
	assert.Greater(t, took(0), late/2)
	assert.Greater(t, took(2), late/2)
	assert.Less(t, took(1), min(took(0), took(2))-late/4)
	assert.Greater(t, attributes(ranks[1].collectives()[0])[KeyCollectiveQueued], (late / 2).Seconds())
}

// TestCollectiveGroups: a group is one operation; attributes on which its calls differ are omitted.
func TestCollectiveGroups(t *testing.T) {
	ranks := journey(t, 2, time.Minute)
	each(t, ranks, func(r *traveller) error {
		p, peer := r.mem.Ptr(), 1-r.rank
		group := func(calls ...func() error) error {
			if err := r.comm.GroupStart(); err != nil {
				return err
			}
			for _, f := range calls {
				if err := f(); err != nil {
					return err
				}
			}
			return r.comm.GroupEnd()
		}
		reduce := func(at device.Ptr, n int64, dt device.DataType) func() error {
			return func() error { return r.comm.AllReduce(r.stream, p+at, p+at, n, dt, device.ReduceSum) }
		}
		for _, calls := range [][]func() error{
			{reduce(0, 10, device.Float32), reduce(512, 20, device.Float32)},
			{reduce(0, 10, device.Float32), reduce(512, 5, device.Int64), func() error { return r.comm.Broadcast(r.stream, p+1024, p+1024, 4, device.Int64, 1) }},
			{func() error { return r.comm.Send(r.stream, p, 8, device.Float64, peer) }, func() error { return r.comm.Recv(r.stream, p+512, 8, device.Float64, peer) }},
			{},
			{reduce(0, 1, device.BFloat16)},
		} {
			if err := group(calls...); err != nil {
				return err
			}
		}
		return r.comm.Close()
	})
	for _, r := range ranks {
		spans := r.collectives()
		require.Len(t, spans, 4, "an empty group is nothing")
		for i, want := range []struct {
			op, dtype            any
			calls, bytes, number any
			bus                  float64
		}{
			{"all_reduce", "float32", int64(2), int64(120), int64(1), 1},
			{"group", nil, int64(3), int64(112), int64(3), 1},
			{"group", "float64", int64(2), int64(128), nil, 1},
			{"all_reduce", "bfloat16", int64(1), int64(2), int64(6), 1},
		} {
			a := attributes(spans[i])
			assert.Equal(t, []any{want.op, want.dtype, want.calls, want.bytes, want.number},
				[]any{a[KeyCollective], a[KeyCollectiveType], a[KeyCollectiveCalls], a[KeyCollectiveSize], a[KeyCollectiveNumber]}, "%d", i)
			assert.Equal(t, a[KeyCollectiveBandwidth], a[KeyCollectiveBusBandwidth], "of two ranks both are the same")
		}
	}
}

// TestCollectiveErrors: an operation that is refused, and the error that ends the communicator, are
// on the span and in the metrics.
func TestCollectiveErrors(t *testing.T) {
	ranks := journey(t, 2, time.Minute)
	each(t, ranks, func(r *traveller) error {
		p := r.mem.Ptr()
		require.ErrorIs(t, r.comm.AllReduce(r.stream, p, p, -1, device.Float32, device.ReduceSum), device.ErrInvalid)
		require.Error(t, r.comm.AllReduce(nil, p, p, 1, device.Float32, device.ReduceSum), "no stream, and no panic")
		require.NoError(t, r.comm.AllReduce(r.stream, p, p, 100+int64(r.rank), device.Float32, device.ReduceSum))
		require.ErrorIs(t, r.comm.Close(), device.ErrMismatch)
		require.Error(t, r.comm.Barrier(r.stream))
		return r.comm.Close()
	})
	for _, r := range ranks {
		var classes []any
		for _, s := range r.collectives() {
			assert.Equal(t, codes.Error, s.Status().Code)
			classes = append(classes, attributes(s)["error.type"])
		}
		assert.Equal(t, []any{"invalid", "mismatch", "closed"}, classes)
		assert.Equal(t, r.tracer.Counts().Started, r.tracer.Counts().Ended)
		count := uint64(0)
		for _, p := range r.collect(t)["cistern.collective.duration"].Data.(metricdata.Histogram[float64]).DataPoints {
			_, failed := p.Attributes.Value("error.type")
			assert.True(t, failed)
			count += p.Count
		}
		assert.Equal(t, uint64(3), count)
	}
}

// TestCollectiveMetrics: they are of all operations, and count bytes once.
func TestCollectiveMetrics(t *testing.T) {
	ranks := journey(t, 4, time.Minute)
	each(t, ranks, func(r *traveller) error {
		for range 5 {
			if err := r.comm.AllReduce(r.stream, r.mem.Ptr(), r.mem.Ptr(), 1000, device.Float32, device.ReduceSum); err != nil {
				return err
			}
		}
		return r.comm.Close()
	})
	for _, r := range ranks {
		found := r.collect(t)
		want := attribute.NewSet(KeyDevice.String("host"), KeyCollective.String("all_reduce"), KeyCollectiveType.String("float32"),
			KeyRank.Int(r.rank), KeyWorldSize.Int(4))
		io := found["cistern.collective.io"].Data.(metricdata.Sum[int64]).DataPoints
		require.Len(t, io, 1)
		assert.Equal(t, int64(20_000), io[0].Value)
		assert.Equal(t, want, io[0].Attributes)
		took := found["cistern.collective.duration"].Data.(metricdata.Histogram[float64]).DataPoints
		bus := found["cistern.collective.bus_bandwidth"].Data.(metricdata.Histogram[float64]).DataPoints
		require.Len(t, took, 1)
		assert.Equal(t, uint64(5), took[0].Count)
		assert.Equal(t, uint64(5), bus[0].Count)
		low, _ := bus[0].Min.Value()
		long, _ := took[0].Max.Value()
		assert.InEpsilon(t, 1.5*4000/long, low, 1e-6, "the slowest operation has the least bandwidth")
	}
}

// TestCollectivesOfSteps: an operation is in the profile of the step in which it was queued, with a
// number that is the same on all ranks, traced or not.
func TestCollectivesOfSteps(t *testing.T) {
	ranks := journey(t, 3, time.Minute, 1)
	profiles := make([][]StepProfile, 3)
	each(t, ranks, func(r *traveller) error {
		p := r.profiler(t, ProfilerConfig{Stream: r.stream, Communicator: r.comm, Tracer: r.tracer,
			OnProfile: func(s StepProfile) { profiles[r.rank] = append(profiles[r.rank], s) }})
		reduce := func(n int64) {
			require.NoError(t, r.comm.AllReduce(r.stream, r.mem.Ptr(), r.mem.Ptr(), n, device.Float32, device.ReduceSum))
		}
		reduce(1)
		ctx, outer := p.StartStep(r.ctx, 1)
		reduce(2)
		_, inner := p.StartStep(ctx, 2)
		reduce(3)
		inner.End()
		reduce(4)
		outer.End()
		reduce(5)
		_, last := p.StartStep(r.ctx, 3)
		last.End()
		return p.Flush(t.Context())
	})
	for rank, r := range ranks {
		require.Len(t, profiles[rank], 3)
		want := map[int64][]StepCollective{1: {{2, "all_reduce", 8, 0}, {4, "all_reduce", 16, 0}}, 2: {{3, "all_reduce", 12, 0}}, 3: nil}
		for _, p := range profiles[rank] {
			for i := range p.Collectives {
				assert.Positive(t, p.Collectives[i].Time)
				p.Collectives[i].Time = 0
			}
			assert.Equal(t, want[p.Step], p.Collectives, "rank %d, step %d", rank, p.Step)
		}
		spans := r.collectives()
		if rank == 1 {
			assert.Empty(t, spans)
			continue
		}
		steps := map[any]any{}
		for _, s := range r.named(stepSpan) {
			steps[s.SpanContext().SpanID()] = attributes(s)[KeyStep]
		}
		for _, s := range spans {
			assert.Equal(t, steps[s.Parent().SpanID()], attributes(s)[KeyStep], "it is below its step, if it has one")
		}
	}
}

// TestCollectiveStepsWaitForTheirs: a step without a stream, and one that is synchronized, have
// their operations too.
func TestCollectiveStepsWaitForTheirs(t *testing.T) {
	for name, config := range map[string]ProfilerConfig{"no stream": {}, "synchronized": {Synchronize: true}} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Config{})
			config := config
			config.Communicator = f.communicator(t)
			if config.Synchronize {
				config.Stream = f.stream
			}
			p := f.profiler(t, config)
			b := f.alloc(t, t.Context(), 512)
			aside := f.newStream(t) // the step does not wait for it
			release := cisterntest.Hold(t, aside)
			_, step := p.StartStep(t.Context(), 1)
			require.NoError(t, config.Communicator.AllReduce(aside, b.Ptr(), b.Ptr(), 1, device.Float32, device.ReduceSum))
			time.AfterFunc(30*time.Millisecond, release)
			if r := step.End(); config.Synchronize {
				require.Len(t, r.Collectives, 1)
			}
			require.Eventually(t, func() bool { return p.Summary().Steps == 1 }, 10*time.Second, time.Millisecond)
			require.Len(t, step.Profile().Collectives, 1)
			require.NoError(t, b.Free())
			require.NoError(t, aside.Close())
		})
	}
}

// silentRank is a communicator that does nothing, and has no device to record an event on.
type silentRank struct{ device.Communicator }

func (silentRank) Size() int         { return 8 }
func (silentRank) Rank() int         { return 1 }
func (silentRank) GroupStart() error { return nil }
func (silentRank) GroupEnd() error   { return nil }
func (silentRank) AllReduce(device.Stream, device.Ptr, device.Ptr, int64, device.DataType, device.ReduceOp) error {
	return nil
}

// silentStream is a stream of a device that does not exist.
type silentStream struct{ device.Stream }

// TestCollectiveCostsNothing: if nothing records there is no event, and no allocation on the Go
// heap.
func TestCollectiveCostsNothing(t *testing.T) {
	unset, err := New(Config{})
	require.NoError(t, err)
	idle := newFixture(t, Config{MeterProvider: noopmetric.NewMeterProvider()}).tracer
	for name, tracer := range map[string]*Tracer{"no tracer": nil, "no SDK": unset, "no parent": idle} {
		t.Run(name, func(t *testing.T) {
			c, err := tracer.Communicator(t.Context(), silentRank{})
			require.NoError(t, err)
			var on device.Stream = silentStream{}
			assert.Zero(t, testing.AllocsPerRun(100, func() {
				_ = c.GroupStart()
				_ = c.AllReduce(on, 0, 0, 1, device.Float32, device.ReduceSum)
				_ = c.GroupEnd()
				_ = c.AllReduce(on, 0, 0, 1, device.Float32, device.ReduceSum)
			}))
		})
	}
}

func TestCollectiveBadInput(t *testing.T) {
	f := newFixture(t, Config{})
	var none context.Context
	_, err := f.tracer.Communicator(none, silentRank{})
	require.ErrorIs(t, err, ErrInvalid)
	_, err = f.tracer.Communicator(t.Context(), nil)
	require.ErrorIs(t, err, ErrInvalid)
	c := f.communicator(t)
	_, err = f.tracer.Communicator(t.Context(), c)
	require.ErrorIs(t, err, ErrInvalid)
	_, err = NewProfiler(ProfilerConfig{Cache: newFixture(t, Config{}).cache, Communicator: c})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "the communicator belongs to device")
	require.NoError(t, c.Close(), "twice is fine")
}

// TestOperationsAreOfTheLatestOpenStep: this holds however steps overlap.
func TestOperationsAreOfTheLatestOpenStep(t *testing.T) {
	f := newFixture(t, Config{})
	c := f.communicator(t)
	p, err := NewProfiler(ProfilerConfig{Cache: f.cache, Communicator: c})
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(1, 2))
	var open []*Step
	for n := range int64(300) {
		if len(open) < 5 && r.IntN(2) == 0 {
			_, step := p.StartStep(t.Context(), n+1)
			open = append(open, step)
		} else if len(open) > 0 {
			i := r.IntN(len(open))
			open[i].End()
			open = append(open[:i], open[i+1:]...)
		}
		var want *Step
		if len(open) > 0 {
			want = open[len(open)-1]
		}
		require.Same(t, want, c.step.Load(), n)
	}
	for _, step := range open {
		step.End()
	}
	require.NoError(t, p.Close())
}
