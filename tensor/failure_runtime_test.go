package tensor

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/leaktest"
	"github.com/cistern-ml/cistern/memcache"
)

// failingDriver opens host devices whose calls may fail.
type failingDriver struct {
	t      testing.TB
	faults *failtest.Faults
}

func (d *failingDriver) Open(string, url.Values) (device.Device, error) {
	dev, err := failtest.NewHost(d.faults, host.Config{Capacity: 1 << 20})
	if err == nil {
		leaktest.Device(d.t, dev)
	}
	return dev, err
}

var driver failingDriver

func init() { device.Register("failing", &driver) }

// offloading returns an offloader, and a tensor that shares its memory with another one.
func (m *trialRig) offloading() (o *Offloader, x *Tensor) {
	m.t.Helper()
	o, err := NewOffloader(m.Runtime, OffloadConfig{MinBytes: 1})
	require.NoError(m.t, err)
	x = m.in(2, 300)
	_, err = m.Rows(m.ctx, x, 0, 1)
	require.NoError(m.t, err)
	return o, x
}

// moves is the Make of an operation of an offloader.
func moves(prepare func(m *trialRig, o *Offloader, x *Tensor) func(ctx context.Context) error) func(testing.TB, *trialRig) failtest.Trial {
	return func(_ testing.TB, m *trialRig) failtest.Trial {
		o, x := m.offloading()
		trial := m.does(prepare(m, o, x))
		trial.See = func() any {
			s := o.Stats()
			return []any{m.see(), s.Offloaded.Current, s.OffloadedBytes.Current, s.Fetched, s.Prefetched}
		}
		release := trial.Undo
		trial.Undo = func() error { return errors.Join(release(), o.Close()) }
		return trial
	}
}

func (m *trialRig) offload(o *Offloader, x *Tensor) {
	m.t.Helper()
	away, err := o.Offload(m.ctx, x)
	require.NoError(m.t, err)
	require.True(m.t, away)
}

// runtimeRows are programs of runtimes and offloaders.
var runtimeRows = []trialRow{
	{Of: "Open", Make: func(t testing.TB, m *trialRig) failtest.Trial {
		driver = failingDriver{t, m.faults}
		var rt *Runtime
		return failtest.Trial{
			Do: func(context.Context) (err error) {
				rt, err = Open("failing")
				return err
			},
			See:  func() any { return rt != nil },
			Undo: func() error { return rt.Close() },
		}
	}},
	{Of: "NewRuntime", Make: func(t testing.TB, m *trialRig) failtest.Trial {
		var rt *Runtime
		return failtest.Trial{
			Do: func(context.Context) (err error) {
				rt, err = NewRuntime(m.cache, m.pool, m.Stream())
				return err
			},
			See:  func() any { return rt != nil },
			Undo: func() error { return rt.Close() },
		}
	}},
	{Of: "NewOffloader", Make: func(t testing.TB, m *trialRig) failtest.Trial {
		var o *Offloader
		return failtest.Trial{
			Do: func(context.Context) (err error) {
				o, err = NewOffloader(m.Runtime, OffloadConfig{})
				return err
			},
			See:  func() any { return o != nil },
			Undo: func() error { return o.Close() },
		}
	}},
	{Of: "Offloader.Offload", Make: moves(func(m *trialRig, o *Offloader, x *Tensor) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			_, err := o.Offload(ctx, x)
			return err
		}
	})},
	{Of: "Offloader.Prefetch", Make: moves(func(m *trialRig, o *Offloader, x *Tensor) func(ctx context.Context) error {
		m.offload(o, x)
		return func(ctx context.Context) error { return o.Prefetch(ctx, x) }
	})},
	{Of: "Offloader.Fetch", Make: moves(func(m *trialRig, o *Offloader, x *Tensor) func(ctx context.Context) error {
		m.offload(o, x)
		return func(ctx context.Context) error { return o.Fetch(ctx, x) }
	})},
	{Of: "Offloader.Fetch of what is on its way", Make: moves(func(m *trialRig, o *Offloader, x *Tensor) func(ctx context.Context) error {
		m.offload(o, x)
		require.NoError(m.t, o.Prefetch(m.ctx, x))
		return func(ctx context.Context) error { return o.Fetch(ctx, x) }
	})},
	{Of: "Offloader.FetchKeep", Make: moves(func(m *trialRig, o *Offloader, x *Tensor) func(ctx context.Context) error {
		m.offload(o, x)
		return func(ctx context.Context) error { return o.FetchKeep(ctx, x) }
	})},
	{Of: "Offloader.Offload of what is kept", Make: moves(func(m *trialRig, o *Offloader, x *Tensor) func(ctx context.Context) error {
		m.offload(o, x)
		require.NoError(m.t, errors.Join(o.FetchKeep(m.ctx, x), m.MulScalarInPlace(m.ctx, x, 2)))
		return func(ctx context.Context) error {
			_, err := o.Offload(ctx, x)
			return err
		}
	})},
	{Of: "Tensor.Release of an offloaded tensor", Make: moves(func(m *trialRig, o *Offloader, x *Tensor) func(ctx context.Context) error {
		m.offload(o, x)
		require.NoError(m.t, o.Prefetch(m.ctx, x))
		return func(ctx context.Context) error { return m.life.CloseContext(ctx) }
	})},
	{Of: "ReadBytes of an offloaded tensor", Make: moves(func(m *trialRig, o *Offloader, x *Tensor) func(ctx context.Context) error {
		m.offload(o, x)
		require.NoError(m.t, o.Prefetch(m.ctx, x))
		return func(ctx context.Context) error { return ReadBytes(ctx, x, bytes.NewReader(make([]byte, 2400))) }
	})},
	{Of: "WriteBytes of an offloaded tensor", Make: moves(func(m *trialRig, o *Offloader, x *Tensor) func(ctx context.Context) error {
		m.offload(o, x)
		return func(ctx context.Context) error { return WriteBytes(ctx, x, failtest.Writer(m.faults, io.Discard)) }
	})},
	{Of: "Offloader.Close", Make: moves(func(m *trialRig, o *Offloader, x *Tensor) func(ctx context.Context) error {
		m.offload(o, x)
		require.NoError(m.t, o.Fetch(m.ctx, x))
		return func(context.Context) error { return o.Close() }
	})},
}

// capturedGraph is a graph that adds a number of each replay to x, and leaves y.
type capturedGraph struct {
	*Graph
	y      *Tensor
	counts int
}

// captureSum captures such a graph. After an error there is no y.
func (m *trialRig) captureSum(ctx context.Context, x *Tensor) (g *capturedGraph, err error) {
	g = new(capturedGraph)
	ctx, life := WithLifetime(ctx)
	g.Graph, err = m.Capture(ctx, func(ctx context.Context) (err error) {
		c := m.Capturing()
		numbers, err := Scalars(ctx, c, 1, func(to []float64) error {
			to[0] = float64(g.counts)
			return nil
		})
		if err != nil {
			return err
		}
		if err := c.OnReplay(func() error { g.counts++; return nil }); err != nil {
			return err
		}
		n, err := m.Convert(ctx, numbers, x.dtype)
		if err != nil {
			return err
		}
		if err := m.AddInPlace(ctx, x, n); err != nil {
			return err
		}
		g.y, err = m.Exp(ctx, x)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, life.Close())
	}
	life.Keep(g.y)
	return g, life.Close()
}

func (g *capturedGraph) end() error {
	if g == nil {
		return nil
	}
	return errors.Join(g.Close(), g.y.Release())
}

// counted is the reason why a replay may have counted a step that was not queued.
var counted = map[failtest.Kind]string{failtest.Failed: "the step's Go code is called before the driver"}

// graphRows are programs of graphs.
var graphRows = []trialRow{
	{Of: "Runtime.Capture Capture.OnReplay Scalars", Make: func(_ testing.TB, m *trialRig) failtest.Trial {
		x := m.in(2, 3)
		var g *capturedGraph
		trial := m.does(func(ctx context.Context) (err error) {
			g, err = m.captureSum(ctx, x)
			return err
		})
		trial.See = func() any {
			tensors, bytes := m.Live()
			seen := []any{tensors, bytes, m.allocated(), m.contents([]*Tensor{x})}
			if g != nil { // its result is undefined until a replay
				seen = append(seen, g.Nodes(), g.Pool().Stats().AllocatedBytes.All.Current)
			}
			return seen
		}
		release := trial.Undo
		trial.Undo = func() error { return errors.Join(g.end(), release()) }
		return trial
	}},
	{Of: "Graph.Replay", Partly: counted, Make: func(t testing.TB, m *trialRig) failtest.Trial {
		x := m.in(2, 3)
		g, err := m.captureSum(m.ctx, x)
		require.NoError(t, err)
		trial := m.does(g.Replay)
		trial.See = func() any { return []any{g.counts, m.see()} }
		trial.Left = func(before any, err error) error {
			if now := []any{g.counts - 1, m.see()}; !assert.ObjectsAreEqual(before, now) {
				return errors.Join(errors.New("more is done than the step's Go code"), err)
			}
			return nil
		}
		release := trial.Undo
		trial.Undo = func() error { return errors.Join(g.end(), release()) }
		return trial
	}},
	{Of: "Graph.Close", Ends: map[string]string{"Free": "the graph is closed, and the cache frees its pool's segments later"}, Make: func(t testing.TB, m *trialRig) failtest.Trial {
		x := m.in(2, 3)
		g, err := m.captureSum(m.ctx, x)
		require.NoError(t, err)
		require.NoError(t, errors.Join(g.Replay(m.ctx), x.Release(), g.y.Release()))
		return m.does(func(context.Context) error { return g.Close() })
	}},
}

// TestRuntimeCloseThatFails: after any failure a runtime is closed, returns the first error each
// time, and leaves nothing allocated.
func TestRuntimeCloseThatFails(t *testing.T) {
	for k := 1; ; k++ {
		f := new(failtest.Faults)
		m := openTrial(memcache.Config{}, Float32)(t, f)
		live := m.live()
		rt, err := NewRuntime(m.cache, m.pool, m.Stream())
		require.NoError(t, err)
		m.Runtime, rt = rt, m.Runtime
		_, x := m.offloading()
		g, err := m.captureSum(m.ctx, x)
		require.NoError(t, err)
		require.NoError(t, errors.Join(g.Replay(m.ctx), g.y.Release()))
		_, err = m.CrossEntropy(m.ctx, m.in(2, 3), m.index(3, 2))
		require.NoError(t, err)
		require.NoError(t, m.life.Close())
		f.Arm(failtest.Failed, k)
		err = m.Runtime.Close()
		failed, _ := f.Disarm()
		require.Equal(t, err, m.Runtime.Close(), "a second time")
		m.Runtime = rt
		assert.Equal(t, live, m.live(), failed)
		if failed == "" {
			require.NoError(t, err)
			require.Greater(t, k, 3)
			return
		}
		// Otherwise the failed call was a query that is repeated.
		if err != nil {
			require.ErrorIs(t, err, failtest.ErrFailed, failed)
		}
	}
}
