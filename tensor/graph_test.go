package tensor

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache"
)

// capture captures f, and closes the graph with the test.
func (r *rig) capture(ctx context.Context, f func(ctx context.Context) error) *Graph {
	r.t.Helper()
	g, err := r.Capture(ctx, f)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { assert.NoError(r.t, g.Close()) })
	return g
}

// TestGraphReplays: nothing runs in the capture. Each replay computes from the current content of
// its input, and intermediate memory of the function returns to the pool.
func TestGraphReplays(t *testing.T) {
	r := newRig(t, 64<<20)
	in, sum := put(r, []float32{1, 2, 3}), put(r, []float32{0})
	defer in.Release()
	defer sum.Release()
	// the first capture allocates memory that the runtime keeps
	r.capture(r.ctx, func(context.Context) error { return nil })
	live := r.cache.Stats().Allocation.All.Current
	var out *Tensor
	step := func(ctx context.Context) error {
		double, err := r.MulScalar(ctx, in, 2)
		if err != nil {
			return err
		}
		square, err := r.Mul(ctx, double, double)
		if err != nil {
			return err
		}
		if out, err = r.Sum(ctx, square); err != nil {
			return err
		}
		one, err := r.Reshape(ctx, out, 1)
		if err != nil {
			return err
		}
		return errors.Join(r.AddInPlace(ctx, sum, one), one.Release(), double.Release(), square.Release())
	}
	g := r.capture(r.ctx, step)
	if !invariants.Enabled { // builds with invariants overwrite freed memory
		assert.Equal(t, 4, g.Nodes())
	}
	assert.Equal(t, live+1, r.cache.Stats().Allocation.All.Current, "the result")
	assert.Equal(t, []float32{0}, get[float32](r, sum, nil))
	version := sum.Version()
	for i := range 5 {
		x := float32(i)
		require.NoError(t, CopyFrom(r.ctx, in, []float32{x, x, 1}))
		require.NoError(t, g.Replay(r.ctx))
		assert.Equal(t, []float32{8*x*x + 4}, get[float32](r, out, nil))
	}
	assert.Equal(t, []float32{8*(1+4+9+16) + 20}, get[float32](r, sum, nil))
	assert.Equal(t, version+5, sum.Version(), "tapes are to know")
	assert.Equal(t, live+1, r.cache.Stats().Allocation.All.Current)
	require.NoError(t, out.Release())
	require.NoError(t, step(r.ctx), "eager")
	require.NoError(t, out.Release())
	require.NoError(t, g.Close())
	require.NoError(t, g.Close())
	require.ErrorIs(t, g.Replay(r.ctx), device.ErrClosed)
}

// TestGraphKeepsMemory of its operands: after their release, a new allocation gets other memory,
// and no replay writes it.
func TestGraphKeepsMemory(t *testing.T) {
	r := newRig(t, 64<<20)
	in := put(r, []float32{1, 2})
	out := put(r, []float32{0, 0})
	bystander := put(r, []float32{9})
	defer bystander.Release()
	ptr := out.ptr()
	g := r.capture(r.ctx, func(ctx context.Context) error { return r.CopyInPlace(ctx, out, in) })
	assert.True(t, out.Exclusive(), "the graph is no tensor")
	require.NoError(t, errors.Join(in.Release(), out.Release()))
	var others []*Tensor
	for range 64 {
		o := put(r, []float32{7, 7})
		require.NotEqual(t, ptr, o.ptr())
		others = append(others, o)
	}
	require.NoError(t, g.Replay(r.ctx))
	for _, o := range others {
		assert.Equal(t, []float32{7, 7}, get[float32](r, o, nil))
	}
	require.NoError(t, g.Close())
	again := put(r, []float32{5, 5})
	others = append(others, again)
	assert.Contains(t, []device.Ptr{ptr, ptr - 512}, again.ptr(), "free with the graph")
	for _, o := range others {
		require.NoError(t, o.Release())
	}
}

// TestGraphsShareAPool: two graphs of different shapes in one pool hold no more than the larger
// one, and are replayed in turn.
func TestGraphsShareAPool(t *testing.T) {
	r := newRig(t, 256<<20)
	pool, err := r.cache.NewPool(memcache.PoolOptions{})
	require.NoError(t, err)
	sizes := []int{2 << 20, 1 << 20, 1 << 19} // 8 MiB, and less
	var ins, outs []*Tensor
	var all []*Graph
	for _, n := range sizes {
		in, err := r.Zeros(r.ctx, Float32, n)
		require.NoError(t, err)
		ins = append(ins, in)
		all = append(all, r.capture(pool.Context(r.ctx), func(ctx context.Context) error {
			double, err := r.MulScalar(ctx, in, 2)
			if err != nil {
				return err
			}
			defer double.Release()
			out, err := r.Sum(ctx, double)
			outs = append(outs, out)
			return err
		}))
		assert.Same(t, pool, all[0].Pool())
	}
	for i := range 12 {
		k := i * 5 % 3
		require.NoError(t, r.fill(r.ctx, ins[k], float64(i)))
		require.NoError(t, all[k].Replay(r.ctx))
		assert.Equal(t, []float32{float32(2 * i * sizes[k])}, get[float32](r, outs[k], nil))
	}
	temps := int64(0)
	for _, s := range r.cache.Snapshot().Segments {
		if s.PoolID == pool.ID() {
			temps += s.TotalSize
		}
	}
	assert.LessOrEqual(t, temps, int64(22<<20), "one segment for the larger temporaries, one for the results")
	for i := range all {
		require.NoError(t, errors.Join(all[i].Close(), ins[i].Release(), outs[i].Release()))
	}
	require.NoError(t, errors.Join(pool.Release(), pool.EmptyCache(r.ctx)))
}

// TestCapturesThatFail return an error that names the call that can't be captured, even if the
// function ignores it, and leave everything as before.
func TestCapturesThatFail(t *testing.T) {
	r := newRig(t, 64<<20)
	x := put(r, []float32{1, 2})
	defer x.Release()
	o, err := NewOffloader(r.Runtime, OffloadConfig{})
	require.NoError(t, err)
	defer o.Close()
	other := errors.New("the function's own")
	outside := r.ctx
	pool, err := r.cache.NewPool(memcache.PoolOptions{})
	require.NoError(t, err)
	defer pool.Release()
	for name, c := range map[string]struct {
		f    func(ctx context.Context) error
		want error
	}{
		"ToSlice":     {func(ctx context.Context) error { _, err := ToSlice[float32](ctx, x, nil); return err }, ErrCapturing},
		"FromSlice":   {func(ctx context.Context) error { _, err := FromSlice(ctx, r.Runtime, []float32{1}); return err }, ErrCapturing},
		"CopyFrom":    {func(ctx context.Context) error { return CopyFrom(ctx, x, []float32{8, 8}) }, ErrCapturing},
		"WriteBytes":  {func(ctx context.Context) error { return WriteBytes(ctx, x, new(bytes.Buffer)) }, ErrCapturing},
		"ReadBytes":   {func(ctx context.Context) error { return ReadBytes(ctx, x, new(bytes.Buffer)) }, ErrCapturing},
		"Synchronize": {r.Synchronize, ErrCapturing},
		"Close":       {func(context.Context) error { return r.Close() }, ErrCapturing},
		"Offload":     {func(ctx context.Context) error { _, err := o.Offload(ctx, x); return err }, ErrCapturing},
		"New":         {func(context.Context) error { _, err := r.New(outside, Float32, 3); return err }, ErrCapturing},
		"Zeros":       {func(ctx context.Context) error { _, err := r.Zeros(pool.Context(ctx), Float32, 3); return err }, ErrCapturing},
		"Capture": {func(ctx context.Context) error {
			_, err := r.Capture(ctx, func(context.Context) error { return nil })
			return err
		}, ErrCapturing},
		"own": {func(context.Context) error { return other }, other},
	} {
		for _, swallows := range []bool{false, true} {
			if swallows && name == "own" {
				continue
			}
			_, err := r.Capture(r.ctx, func(ctx context.Context) error {
				y, err := r.MulScalar(ctx, x, 2)
				require.NoError(t, err)
				defer y.Release()
				require.NoError(t, r.AddInPlace(ctx, x, y))
				if err := c.f(ctx); !swallows {
					return err
				}
				return nil
			})
			require.ErrorIs(t, err, c.want, name)
			if name != "own" {
				require.ErrorContains(t, err, name+": not possible in a capture")
			}
			require.Nil(t, r.Capturing())
			assert.Equal(t, []float32{1, 2}, get[float32](r, x, nil), name)
		}
	}
	assert.Panics(t, func() { _, _ = r.Capture(r.ctx, func(context.Context) error { panic("f") }) })
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = r.Capture(r.ctx, func(context.Context) error { runtime.Goexit(); return nil })
	}()
	<-done
	require.Nil(t, r.Capturing())
	require.NoError(t, r.Synchronize(r.ctx))
	g := r.capture(r.ctx, func(ctx context.Context) error { return r.AddInPlace(ctx, x, x) })
	require.NoError(t, g.Replay(r.ctx))
	assert.Equal(t, []float32{2, 4}, get[float32](r, x, nil))
	require.NoError(t, r.MulScalarInPlace(r.ctx, x, 2))
	assert.Equal(t, []float32{4, 8}, get[float32](r, x, nil))
}

// TestGraphScalars: operations read the numbers that next set before a replay, even if they do not
// fit into one block. A replay that fails before that changes nothing.
func TestGraphScalars(t *testing.T) {
	r := newRig(t, 64<<20)
	const each, count = 200, 5 // 1600 bytes: two to a block
	var outs [count]*Tensor
	replay, order, fails := 0, []int(nil), error(nil)
	g := r.capture(r.ctx, func(ctx context.Context) error {
		before, err := r.Zeros(ctx, Uint8, 3<<20) // the graph writes it, and later work can use it
		require.NoError(t, errors.Join(err, before.Release()))
		small, err := r.Zeros(ctx, Uint8, 64<<10)
		require.NoError(t, errors.Join(err, small.Release()))
		for i := range outs {
			s, err := Scalars(ctx, r.Capturing(), each, func(to []float64) error {
				order = append(order, i)
				for j := range to {
					to[j] = float64(1000*replay + each*i + j)
				}
				return nil
			})
			require.NoError(t, err)
			if outs[i], err = r.Copy(ctx, s); err != nil {
				return err
			}
			require.NoError(t, r.Capturing().OnReplay(func() error { order = append(order, 10+i); return fails }))
		}
		return nil
	})
	assert.Empty(t, order)
	for replay = range 20 {
		require.NoError(t, g.Replay(r.ctx))
	}
	require.Len(t, order, 20*2*count)
	assert.Equal(t, []int{0, 10, 1, 11, 2, 12, 3, 13, 4, 14}, order[:10])
	fails, replay = errors.New("the step"), 77
	require.ErrorIs(t, g.Replay(r.ctx), fails)
	ended, cancel := context.WithCancel(r.ctx)
	cancel()
	require.ErrorIs(t, g.Replay(ended), context.Canceled)
	for i, out := range outs {
		got := get[float64](r, out, nil)
		assert.Equal(t, float64(19000+each*i), got[0])
		assert.Equal(t, float64(19000+each*i+each-1), got[each-1])
		require.NoError(t, out.Release())
	}
}

// TestGraphsMemoryStays on the device while the graph exists.
func TestGraphsMemoryStays(t *testing.T) {
	r := newRig(t, 64<<20)
	o, err := NewOffloader(r.Runtime, OffloadConfig{MinBytes: 1})
	require.NoError(t, err)
	defer o.Close()
	x := put(r, []float32{1, 2})
	defer x.Release()
	g := r.capture(r.ctx, func(ctx context.Context) error { return r.AddInPlace(ctx, x, x) })
	away, err := o.Offload(r.ctx, x)
	require.NoError(t, err)
	assert.False(t, away)
	require.NoError(t, g.Close())
	away, err = o.Offload(r.ctx, x)
	require.NoError(t, err)
	assert.True(t, away)
}

// TestGraphRecordsFaults of labels, at each replay.
func TestGraphRecordsFaults(t *testing.T) {
	r := newRig(t, 64<<20)
	logits, labels := put(r, make([]float32, 6), 2, 3), put(r, []int32{0, 1})
	defer logits.Release()
	defer labels.Release()
	var loss *Tensor
	g := r.capture(r.ctx, func(ctx context.Context) (err error) {
		loss, err = r.CrossEntropy(ctx, logits, labels)
		return err
	})
	defer func() { assert.NoError(t, loss.Release()) }()
	for i := range 6 {
		require.NoError(t, CopyFrom(r.ctx, labels, []int32{2, int32(3 * (i % 2))}))
		require.NoError(t, g.Replay(r.ctx))
		if err := r.Synchronize(r.ctx); i%2 == 1 {
			require.ErrorIs(t, err, ErrLabel)
		} else {
			require.NoError(t, err)
		}
	}
}

// TestGraphsAndClose: the runtime closes the remaining graphs, and captures and drops leak nothing.
func TestGraphsAndClose(t *testing.T) {
	r := newRig(t, 128<<20)
	x := put(r, make([]float32, 1<<20))
	reserved := int64(0)
	for i := range rounds(50, 10) {
		g, err := r.Capture(r.ctx, func(ctx context.Context) error {
			y, err := r.MulScalar(ctx, x, 2)
			return errors.Join(err, y.Release())
		})
		require.NoError(t, err)
		require.NoError(t, g.Replay(r.ctx))
		if i == 0 {
			reserved = r.cache.MemoryReserved()
		}
		require.Equal(t, reserved, r.cache.MemoryReserved(), "%d graphs were dropped", i)
		require.NoError(t, g.Close())
	}
	_, err := r.Capture(r.ctx, func(ctx context.Context) error { return r.AddInPlace(ctx, x, x) })
	require.NoError(t, err)
	require.NoError(t, x.Release())
	require.NoError(t, r.Close())
	_, err = r.Capture(r.ctx, func(context.Context) error { return nil })
	require.ErrorIs(t, err, ErrClosed)
}

// TestGraphPoolStartsSmall: a step that holds a few MiB reserves a few.
func TestGraphPoolStartsSmall(t *testing.T) {
	r := newRig(t, 128<<20)
	x := put(r, make([]float32, 3<<18))
	defer x.Release()
	reserved := func() int64 { return r.cache.Stats().ReservedBytes.LargePool.Current }
	for i := range 2 { // the first one allocates the workspace of products, too
		require.NoError(t, r.cache.EmptyCache(r.ctx))
		before := reserved()
		g, err := r.Capture(r.ctx, func(ctx context.Context) error {
			y, err := r.MulScalar(ctx, x, 2)
			return errors.Join(err, y.Release())
		})
		require.NoError(t, err)
		if i == 1 {
			require.EqualValues(t, 6<<20, reserved()-before)
		}
		require.NoError(t, g.Close())
	}
}

// TestGraphMemory is the memory that the function holds, to the byte, and the pool reports the
// graphs that share it.
func TestGraphMemory(t *testing.T) {
	r := newRig(t, 256<<20)
	in, small := put(r, make([]float32, 1<<18)), put(r, []float32{1}) // small has a segment of its own
	defer in.Release()
	defer small.Release()
	step := func(ctx context.Context) error {
		a, err := r.MulScalar(memcache.WithModule(ctx, "a"), in, 2)
		if err != nil {
			return err
		}
		b, err := r.Mul(memcache.WithModule(ctx, "b"), a, a)
		if err != nil {
			return err
		}
		c, err := r.MulScalar(memcache.WithModule(ctx, "c"), b, 3)
		return errors.Join(err, a.Release(), b.Release(), c.Release())
	}
	ctx, scope := r.cache.Scope(r.ctx, "eager")
	require.NoError(t, step(ctx))
	eager := scope.Window()
	scope.End()
	pool, err := r.cache.NewPool(memcache.PoolOptions{})
	require.NoError(t, err)
	g, also, alone := r.capture(pool.Context(r.ctx), step), r.capture(pool.Context(r.ctx), step), r.capture(r.ctx, step)
	m := g.Memory()
	assert.Equal(t, eager.Allocated.Peak-eager.Allocated.Start, m.Held)
	assert.Equal(t, eager.Allocations, m.Allocations)
	modules := memcache.Profile{Holdings: m.Holdings}.Sum(func(h memcache.Holding) string { return h.Module })
	assert.Equal(t, []memcache.Share{{Name: "a", Blocks: 1, Bytes: 1 << 20}, {Name: "b", Blocks: 1, Bytes: 1 << 20}, {Name: "c", Blocks: 1, Bytes: 1 << 20}}, modules)
	segments := int64(0)
	for _, s := range r.cache.Snapshot().Segments {
		if s.PoolID == pool.ID() {
			segments += s.TotalSize
		}
	}
	assert.Equal(t, segments, m.Pool.Reserved.Load())
	assert.Same(t, m.Pool, also.Memory().Pool)
	assert.Equal(t, []int64{2, 1}, []int64{m.Pool.Graphs.Load(), alone.Memory().Pool.Graphs.Load()})
	require.NoError(t, also.Close())
	assert.EqualValues(t, 1, m.Pool.Graphs.Load())

	ctx, scope = r.cache.Scope(r.ctx, "replayed")
	require.NoError(t, errors.Join(g.Replay(ctx), alone.Replay(ctx), g.Replay(ctx)))
	assert.Equal(t, []memcache.Replays{{GraphMemory: m, Count: 2}, {GraphMemory: alone.Memory(), Count: 1}}, scope.Replays())
	assert.Zero(t, scope.Window().Allocations, "replays allocate nothing")
	scope.End()
	require.NoError(t, g.Close())
	require.NoError(t, errors.Join(pool.Release(), pool.EmptyCache(r.ctx)))
}

// TestFailedCapturesUndo: after a failed capture has ended, OnFailure's functions are called, the
// last first. A successful capture calls none.
func TestFailedCapturesUndo(t *testing.T) {
	r := newRig(t, 64<<20)
	wrong := errors.New("wrong")
	for name, fail := range map[string]func(c *Capture) error{
		"nothing":   func(*Capture) error { return nil },
		"an error":  func(*Capture) error { return wrong },
		"a refusal": func(c *Capture) error { _ = c.Refuse("x", "y"); return nil },
		"a panic":   func(*Capture) error { panic(wrong) },
	} {
		var undone []int
		f := func(context.Context) error {
			c := r.Capturing()
			for i := range 4 {
				c.OnFailure(func() {
					assert.Nil(t, r.Capturing())
					undone = append(undone, i)
				})
			}
			return fail(c)
		}
		if name == "nothing" {
			r.capture(r.ctx, f)
			require.Empty(t, undone)
			continue
		}
		if name == "a panic" {
			require.Panics(t, func() { _, _ = r.Capture(r.ctx, f) })
		} else {
			_, err := r.Capture(r.ctx, f)
			require.Error(t, err)
		}
		require.Equal(t, []int{3, 2, 1, 0}, undone, name)
	}
}
