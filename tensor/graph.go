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

// Graph is what a function has queued once, and what is queued again, as a whole, by each Replay (torch.cuda.CUDAGraph). It is made by
// [Runtime.Capture], is used by one goroutine at a time, and must be closed.
type Graph struct {
	rt      *Runtime
	graph   device.Graph
	pool    *memcache.Pool
	ownPool bool
	before  []func() error
	kept    []kept
	made    *made
	scalars scalars
	faults  bool // a kernel may note a fault
	memory  *memcache.GraphMemory

	described *describe.Graph // for OnOperation
	closed    atomic.Bool
	begun     atomic.Bool // a Replay, which calls functions of the program
}

// Capture captures what f queues on the runtime's stream, and runs none of it: neither now, nor is anything different afterwards in tensors or
// in what package autograd counts. Each [Graph.Replay] then does what a call of f would do, to the bit, without the work of calling it.
//
//	graph, err := env.Capture(ctx, func(ctx context.Context) error { return step(ctx, x, y) })
//	for batch := range batches {
//		if err = errors.Join(env.CopyInPlace(ctx, x, batch.x), env.CopyInPlace(ctx, y, batch.y)); err == nil {
//			err = graph.Replay(ctx)
//		}
//	}
//
// f gets a context whose memory comes from a private pool. A pool of the runtime's cache that ctx has ([memcache.Pool.Context]) is shared with
// whatever else is captured in it, such as graphs for other shapes, which are then replayed on the one stream and never
// beside each other; release it when they are closed, and let it not lend ([memcache.PoolOptions].UseOnOOM). Else the graph has one of its own. What f leaves, such as the loss, is in the pool, and each replay overwrites
// it; what f has released is the pool's again, and other graphs' of that pool. The pool is entered meanwhile ([memcache.Pool.Enter]), which
// changes something for caches that are Exact. Memory that is older than the capture and is read
// or written by it is kept until the graph is closed, whoever releases it, but for that of [Runtime.FromBlock], which its owner must keep.
//
// Go code of f runs once, in the capture. What it computes there are constants of the graph, with these exceptions: the optimisers of package
// autograd count their steps and take the learning rates of the day, schedules step, and tapes draw their seeds, at each replay. Operations
// make what they need, such as an optimiser's state or compiled kernels, before: call f once before its capture.
//
// What can't be captured returns an error that wraps [ErrCapturing] and names it, and Capture returns that one too, whatever f makes of it:
// to read elements, to make a tensor of a slice, to wait, to move tensors to the host, memory with another context than f's. After an error
// there is no graph; the stream, the pool and the runtime are as they were, and f may be called, or captured again. Streams and events of the
// program's own can take part as [device.GraphCapturer] says; memory that its own work on a captured stream uses is kept like that of operations if it says so with
// [Tensor.RecordStream], also on the runtime's stream.
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
	// These live longer than a capture, and are not set to 0 at each replay.
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

// record calls f while the stream is captured. It ends the capture however f ends.
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
	returned := false // else f panics
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

// Pool is the private pool that the graph's memory is in.
func (g *Graph) Pool() *memcache.Pool { return g.pool }

// Memory is what the graph holds while it runs. Steps of package trace tell it of the graphs that are replayed in them.
func (g *Graph) Memory() *memcache.GraphMemory { return g.memory }

// Nodes is the number of operations in the graph; see [device.Graph].
func (g *Graph) Nodes() int {
	if g == nil || g.rt == nil {
		return 0
	}
	return g.graph.Nodes()
}

// Replay queues the graph on the runtime's stream and returns before it has run. Before that it does what the step's Go code does in each step,
// on this goroutine ([Capture.OnReplay]), and copies the numbers that this gives to the device. An error of the Go code, of ctx or of pinned memory comes before
// anything is queued. After an error of the device the Go code has been called, and the graph does
// not run.
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
	if err := g.rt.refuseCaptured("Replay", "a graph is no part of another one: replay it beside the capture"); err != nil {
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
	// The step is counted by now, so it is done, whatever becomes of ctx.
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

// Close waits for the replays that are queued, and gives back what the graph keeps: memory that was released meanwhile, and its pool if that
// is its own. What of the pool is in use, such as the loss, stays until it is released. It is idempotent; other calls after it are errors that wrap
// [device.ErrClosed]. The graph is closed also after an error. Close of nil does nothing.
func (g *Graph) Close() error {
	if g == nil || g.rt == nil {
		return nil
	}
	if g.begun.Load() {
		return fmt.Errorf("tensor: closing a graph: %w: a function of OnReplay or Scalars has called Close, while it is being replayed", ErrInvalid)
	}
	return g.end()
}

// end is Close, whatever is going on.
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

// String is such as "graph of 12 nodes on host".
func (g *Graph) String() string {
	if g == nil || g.rt == nil {
		return "no graph"
	}
	return fmt.Sprintf("graph of %d nodes on %s", g.Nodes(), g.rt.Device().Name())
}
