package trace

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/cistern-ml/cistern/device"
)

// capture returns the graph of the work that f queues on the rank's stream.
func (r *traveller) capture(f func() error) (device.Graph, error) {
	s := r.stream.(device.GraphCapturer)
	if err := s.BeginCapture(); err != nil {
		return nil, err
	}
	err := f()
	g, ended := s.EndCapture()
	return g, errors.Join(err, ended)
}

// collectiveBytes returns the counts of cistern.collective.io, by operation.
func (f *fixture) collectiveBytes(t *testing.T) map[string]int64 {
	sums := map[string]int64{}
	for _, m := range f.collect(t) {
		require.NotContains(t, []string{"cistern.collective.duration", "cistern.collective.bus_bandwidth"}, m.Name, "nothing has been timed")
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == "cistern.collective.io" {
			for _, p := range sum.DataPoints {
				v, _ := p.Attributes.Value(KeyCollective)
				sums[v.AsString()] += p.Value
			}
		}
	}
	return sums
}

// TestCollectiveReplays: random graphs of random operations are replayed in random steps. Each step
// has the operations of its own replays, the metric of bytes has all, and none has a span or a
// time.
func TestCollectiveReplays(t *testing.T) {
	const size = 3
	ranks := journey(t, size, time.Minute)
	random := rand.New(rand.NewPCG(7, 8))
	type totals map[string]ReplayedCollective
	type graph struct {
		calls [][]int64 // counts of float32: of an all-reduce, or of a group of them
		named []string
	}
	graphs := make([]graph, 3)
	for i := range graphs {
		for range 1 + random.IntN(4) {
			n := 1 + random.Int64N(500)
			switch random.IntN(3) {
			case 0:
				graphs[i].calls, graphs[i].named = append(graphs[i].calls, []int64{n}), append(graphs[i].named, "all_reduce")
			case 1:
				graphs[i].calls, graphs[i].named = append(graphs[i].calls, []int64{n}), append(graphs[i].named, "all_gather")
			default:
				graphs[i].calls, graphs[i].named = append(graphs[i].calls, []int64{n, 7}), append(graphs[i].named, "group")
			}
		}
	}
	program := make([][]int, 5) // the graphs of each step; the last ones are replayed in none
	for i := range program {
		for range random.IntN(5) {
			program[i] = append(program[i], random.IntN(len(graphs)))
		}
	}
	want, all := make([]totals, len(program)), map[string]int64{}
	for i, step := range program {
		want[i] = totals{}
		for _, g := range step {
			for j, name := range graphs[g].named {
				bytes := 4 * graphs[g].calls[j][0]
				switch name {
				case "all_gather":
					bytes *= size
				case "group":
					bytes += 4 * 7 * size
				}
				x := want[i][name]
				want[i][name] = ReplayedCollective{name, x.Count + 1, x.Bytes + bytes}
				all[name] += bytes
			}
		}
	}
	each(t, ranks, func(r *traveller) error {
		p := r.profiler(t, ProfilerConfig{Stream: r.stream, Communicator: r.comm, Tracer: r.tracer})
		var made []device.Graph
		at := r.mem.Ptr()
		reduce := func(n int64) error { return r.comm.AllReduce(r.stream, at, at, n, device.Float32, device.ReduceSum) }
		gather := func(n int64) error {
			return r.comm.AllGather(r.stream, at, at+device.Ptr(int64(r.rank)*n*4), n, device.Float32)
		}
		for _, g := range graphs {
			made1, err := r.capture(func() error {
				for i, counts := range g.calls {
					var err error
					switch g.named[i] {
					case "all_reduce":
						err = reduce(counts[0])
					case "all_gather":
						err = gather(counts[0])
					default:
						at = r.mem.Ptr()
						err = errors.Join(r.comm.GroupStart(), reduce(counts[0]))
						at += 4096
						err = errors.Join(err, gather(counts[1]), r.comm.GroupEnd())
						at = r.mem.Ptr()
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			made = append(made, made1)
		}
		for i, replays := range program {
			ctx, step := r.ctx, (*Step)(nil)
			if i < len(program)-1 {
				ctx, step = p.StartStep(r.ctx, int64(i+1))
			}
			_ = ctx
			for _, g := range replays {
				if err := made[g].Replay(r.stream); err != nil {
					return err
				}
			}
			profile := step.End()
			got := totals{}
			for _, x := range profile.ReplayedCollectives {
				got[x.Operation] = x
			}
			if step != nil {
				assert.Equal(t, want[i], got, "rank %d, step %d", r.rank, i+1)
				assert.Len(t, profile.ReplayedCollectives, len(got))
			}
		}
		if err := p.Flush(t.Context()); err != nil {
			return err
		}
		for _, g := range made {
			if err := errors.Join(r.stream.Synchronize(t.Context()), g.Close()); err != nil {
				return err
			}
		}
		return r.comm.Close()
	})
	for _, r := range ranks {
		assert.Empty(t, r.collectives())
		assert.Equal(t, all, r.collectiveBytes(t))
		for _, s := range r.named(stepSpan) {
			a := attributes(s)
			expected := want[a[KeyStep].(int64)-1]
			kinds, _ := a[KeyStepReplayOperations].([]string)
			require.Len(t, kinds, len(expected))
			for i, kind := range kinds {
				x := expected[kind]
				assert.Equal(t, []int64{x.Count, x.Bytes}, []int64{a[KeyStepReplayCollectives].([]int64)[i], a[KeyStepReplaySizes].([]int64)[i]})
			}
			assert.NotContains(t, a, KeyStepCollectives)
		}
	}
}

// TestCollectiveCaptured: a capture counts nothing, an operation that is refused in a capture is in
// no replay, and operations outside of graphs are recorded separately from those of replays.
func TestCollectiveCaptured(t *testing.T) {
	f := newFixture(t, Config{})
	c := f.communicator(t)
	p := f.profiler(t, ProfilerConfig{Stream: f.stream, Communicator: c, Tracer: f.tracer})
	b := f.alloc(t, t.Context(), 512)
	r := &traveller{fixture: f}
	reduce := func(n int64) error {
		return c.AllReduce(f.stream, b.Ptr(), b.Ptr(), n, device.Float32, device.ReduceSum)
	}
	_, step := p.StartStep(t.Context(), 1)
	g, err := r.capture(func() error {
		require.Error(t, reduce(-1))
		return reduce(2)
	})
	require.NoError(t, err)
	require.Nil(t, step.End().ReplayedCollectives, "nothing has run")
	_, step = p.StartStep(t.Context(), 2)
	require.NoError(t, g.Replay(f.stream))
	require.NoError(t, reduce(3))
	require.NoError(t, g.Replay(f.stream))
	step.End()
	require.NoError(t, p.Flush(t.Context()))
	profile := step.Profile()
	require.Equal(t, []ReplayedCollective{{"all_reduce", 2, 16}}, profile.ReplayedCollectives)
	require.Len(t, profile.Collectives, 1)
	require.EqualValues(t, 12, profile.Collectives[0].Bytes)
	require.Equal(t, profile.Collectives[0].Time, profile.CollectiveTime)
	require.Subset(t, profile.attributes(nil), []attribute.KeyValue{KeyStepReplayOperations.StringSlice([]string{"all_reduce"}),
		KeyStepReplayCollectives.Int64Slice([]int64{2}), KeyStepReplaySizes.Int64Slice([]int64{16})})
	require.NoError(t, f.stream.Synchronize(t.Context()))
	require.NoError(t, g.Replay(f.stream)) // in no step, as the last one has ended
	require.Equal(t, profile, step.Profile())
	require.NoError(t, f.stream.Synchronize(t.Context()))
	require.NoError(t, g.Close())
	require.NoError(t, b.Free())
}
