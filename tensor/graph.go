package tensor

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/internal/describe"
)

// Graph is the work that a function queued once, and that each Replay queues again as a whole
// (torch.cuda.CUDAGraph). [Runtime.Capture] makes it. It is used by one goroutine at a time, and
// must be closed.
type Graph struct {
	rt      *Runtime
	graph   device.Graph
	pool    *memcache.Pool
	ownPool bool
	before  []func() error
	kept    []kept
	made    *made
	scalars scalars
	faults  bool // a kernel may record a fault
	memory  *memcache.GraphMemory

	described *describe.Graph // for OnOperation
	closed    atomic.Bool
	begun     atomic.Bool // by a Replay in progress, which calls functions of the program
}

// Capture captures the work that f queues on the runtime's stream, without running it. It changes
// neither tensors nor the counters of package autograd. Each [Graph.Replay] then does what a call
// of f would do, with bit-identical results, but without the cost of calling it.
//
//	graph, err := env.Capture(ctx, func(ctx context.Context) error { return step(ctx, x, y) })
//	for batch := range batches {
//		err = errors.Join(env.CopyInPlace(ctx, x, batch.x), env.CopyInPlace(ctx, y, batch.y))
//		if err == nil {
//			err = graph.Replay(ctx)
//		}
//	}
//
// f gets a context whose memory comes from a private pool. If ctx has a pool of the runtime's cache
// ([memcache.Pool.Context]), the graph uses it. The pool may be shared with other graphs, such as
// graphs for other shapes, which are then replayed on the one stream and never concurrently. It
// must not lend ([memcache.PoolOptions].UseOnOOM); release it after its graphs are closed. Without
// such a pool, the graph has one of its own.
//
// Results that f leaves, such as the loss, are in the pool, and each replay overwrites them. Memory
// that f has released belongs to the pool again, and so to the pool's other graphs. The pool is
// entered during the capture ([memcache.Pool.Enter]), which matters to caches that are Exact.
// Memory that is older than the capture, and that the capture reads or writes, is kept until the
// graph is closed, even if it is released. The exception is memory of [Runtime.FromBlock], which
// its owner must keep.
//
// Go code of f runs once, in the capture. Values that it computes are constants of the graph, with
// these exceptions: at each replay the optimisers of package autograd count their steps and take
// the current learning rates, schedules step, and tapes draw their seeds. Call f once before its
// capture, so that operations make what they need, such as an optimiser's state or compiled
// kernels.
//
// Some calls can't be captured: reading elements, making a tensor of a slice, waiting, moving
// tensors to the host, and allocating with another context than f's. They return an error that
// wraps [ErrCapturing] and names the call. Capture returns this error too, even if f ignores it.
// After an error there is no graph; the stream, the pool and the runtime are as before, and f may
// be called, or captured again.
//
// Streams and events of the program can take part as [device.GraphCapturer] describes. If the
// program's own work on a captured stream uses a tensor, [Tensor.RecordStream] makes the graph keep
// the memory like that of operands, also on the runtime's stream.
func (rt *Runtime) Capture(ctx context.Context, f func(ctx context.Context) error) (*Graph, error) {
	g, err := rt.capture(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("tensor: Capture: %w", err)
	}
	return g, nil
}

func (rt *Runtime) capture(ctx context.Context, f func(ctx context.Context) error) (*Graph, error) {
	switch {
	case ctx == nil || f == nil:
		return nil, fmt.Errorf("%w: the context and the function must not be nil", ErrInvalid)
	case rt.closed.Load():
		return nil, ErrClosed
	}
	if c := rt.capturing.Load(); c != nil {
		return nil, c.Refuse("Capture", "the stream is captured already")
	}
	stream, err := rt.capturable()
	if err != nil {
		return nil, err
	}
	if p := rt.cache.PoolOf(ctx); p.Lends() {
		return nil, fmt.Errorf("%w: %v lends its free memory to others (PoolOptions.UseOnOOM), and replays would overwrite it", ErrInvalid, p)
	}
	// These outlive the capture, and a replay does not set them to 0.
	fault, err := rt.faultWord(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { rt.parked.add(fault.release(ctx)) }()
	if err := rt.backend.Prepare(ctx); err != nil {
		return nil, fmt.Errorf("tensor: Capture: %w", err)
	}
	g := &Graph{rt: rt, pool: rt.cache.PoolOf(ctx), made: new(made)}
	if g.pool == nil {
		if g.pool, err = rt.cache.NewPool(memcache.PoolOptions{StartSmall: true}); err != nil {
			return nil, err
		}
		g.ownPool = true
	}
	c := &Capture{rt: rt, made: g.made, pool: g.pool, kept: make(map[*storage]uint64)}
	g.memory, err = rt.cache.CaptureGraph(g.pool, func() error { return g.record(g.pool.Context(ctx), c, stream, f) })
	if err != nil {
		return nil, errors.Join(err, g.release(ctx))
	}
	if !rt.graphs.add(g) {
		return nil, errors.Join(ErrClosed, g.release(ctx))
	}
	return g, nil
}

// record calls f while the stream is captured. It ends the capture even if f panics.
func (g *Graph) record(ctx context.Context, c *Capture, stream device.GraphCapturer, f func(ctx context.Context) error) (err error) {
	if !g.rt.capturing.CompareAndSwap(nil, c) {
		return fmt.Errorf("%w: the stream is captured already", ErrCapturing)
	}
	leave, err := g.pool.Enter()
	if err == nil {
		if err = stream.BeginCapture(); err != nil {
			leave()
		}
	}
	if err != nil {
		g.rt.capturing.Store(nil)
		return err
	}
	returned := false // stays false if f panics
	defer func() {
		graph, endErr := stream.EndCapture()
		leave()
		g.rt.capturing.Store(nil)
		g.graph, g.before, g.kept, g.scalars, g.faults = graph, c.before, c.end(), c.scalars, c.faults
		if err = errors.Join(err, endErr); err == nil && returned {
			g.described = describe.NewGraph(graph.Nodes(), c.operations)
			return
		}
		for i := len(c.failed) - 1; i >= 0; i-- {
			c.failed[i]()
		}
		if !returned {
			g.rt.parked.add(g.release(ctx))
		}
	}()
	err = f(ctx)
	returned = true
	if c.refused != nil && !errors.Is(err, c.refused) {
		err = errors.Join(c.refused, err)
	}
	return err
}

// Pool returns the private pool that holds the graph's memory.
func (g *Graph) Pool() *memcache.Pool { return g.pool }

// Memory returns the record of the memory that the graph holds while it runs. Steps of package
// trace report it for each graph that they replay.
func (g *Graph) Memory() *memcache.GraphMemory { return g.memory }

// Nodes returns the number of operations in the graph; see [device.Graph].
func (g *Graph) Nodes() int {
	if g == nil || g.rt == nil {
		return 0
	}
	return g.graph.Nodes()
}

// Replay queues the graph on the runtime's stream and returns before it has run. First, on the
// caller's goroutine, it runs the Go code of the step ([Capture.OnReplay]), and queues the copies
// of the numbers that this code sets. An error of the Go code, of ctx or of pinned memory is
// returned before anything is queued. After an error of the device the Go code has been called, but
// the graph does not run.
func (g *Graph) Replay(ctx context.Context) error {
	if err := g.replay(ctx); err != nil {
		return fmt.Errorf("tensor: Replay: %w", err)
	}
	return nil
}

func (g *Graph) replay(ctx context.Context) (err error) {
	switch {
	case ctx == nil:
		return fmt.Errorf("%w: the context is nil; use context.Background()", ErrInvalid)
	case g == nil || g.rt == nil:
		return fmt.Errorf("%w: the graph is not one that Capture returned", ErrInvalid)
	case g.closed.Load():
		return fmt.Errorf("the graph: %w", device.ErrClosed)
	case g.rt.closed.Load():
		return ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	}
	if err := g.rt.refuseCaptured("Replay", "a graph can't be part of another one: replay it outside the capture"); err != nil {
		return err
	}
	if err := notByHand(g.rt.stream); err != nil {
		return err
	}
	if !g.begun.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: it was called by a function of OnReplay or Scalars, while the graph is being replayed", ErrInvalid)
	}
	defer func() {
		g.begun.Store(false)
		err = errors.Join(err, g.scalars.unstage())
	}()
	if err := g.scalars.stage(ctx, g.rt.pool); err != nil {
		return err
	}
	for _, f := range g.before {
		if err := f(); err != nil {
			return err
		}
	}
	if g.faults {
		defer g.rt.faults.arm()
	}
	// The step is counted by now, so it is completed even if ctx is cancelled.
	if err := g.scalars.upload(context.WithoutCancel(ctx), g.rt); err != nil {
		return err
	}
	queued := g.rt.observeReplay(ctx, g.described)
	err = g.graph.Replay(g.rt.stream)
	queued()
	if err != nil {
		return err
	}
	g.made.replays.Add(1)
	for _, k := range g.kept {
		if k.writes > 0 {
			k.version.Add(k.writes)
		}
	}
	g.rt.cache.Replayed(ctx, g.memory)
	return nil
}

// Close waits for the queued replays and releases what the graph keeps: memory that was released
// meanwhile and, if it is the graph's own, the pool. Memory of the pool that is in use, such as the
// loss, stays until it is released. Close is idempotent; other calls after it return errors that
// wrap [device.ErrClosed]. The graph is closed even after an error. Close of nil does nothing.
func (g *Graph) Close() error {
	if g == nil || g.rt == nil {
		return nil
	}
	if g.begun.Load() {
		return fmt.Errorf("tensor: closing a graph: %w: a function of OnReplay or Scalars has called Close, while it is being replayed", ErrInvalid)
	}
	return g.end()
}

// end is Close, even during a replay.
func (g *Graph) end() error {
	if !g.closed.CompareAndSwap(false, true) {
		return nil
	}
	g.rt.graphs.remove(g)
	if err := g.release(context.Background()); err != nil {
		return fmt.Errorf("tensor: closing a graph: %w", err)
	}
	return nil
}

func (g *Graph) release(ctx context.Context) error {
	var errs []error
	if g.graph != nil {
		errs = append(errs, g.graph.Close())
	}
	g.made.closed.Store(true)
	if g.memory != nil {
		g.memory.Close()
	}
	ctx = context.WithoutCancel(ctx)
	errs = append(errs, g.scalars.release(ctx)...)
	errs = append(errs, releaseKept(ctx, g.kept)...)
	if g.ownPool {
		errs = append(errs, g.pool.Release(), g.pool.EmptyCache(ctx))
	}
	return errors.Join(errs...)
}

// String returns text such as "graph of 12 nodes on host".
func (g *Graph) String() string {
	if g == nil || g.rt == nil {
		return "no graph"
	}
	return fmt.Sprintf("graph of %d nodes on %s", g.Nodes(), g.rt.Device().Name())
}
