package tensor

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// What a captured operation names is there for as long as the graph is. The memory of operands that are older than the capture is kept
// by a reference to their storage: released, it would be handed to others, and a replay would write it. What the function allocates
// and frees again goes back to the pool, from which no one but captures allocate; so it is free for the operations that
// are captured next, as on a stream.
//
// Numbers are captured by value, but for those that an operation reads from device memory. Go code that gives other ones at each replay
// says so with Scalars, and what else it does in each step with OnReplay. Both are called before each replay in the order of
// the capture, which is that of the step.

// Capture is a capture that is under way: what the operations and the Go code of a step that change from step to step need to know of
// it. It belongs to the goroutine of the function that is captured.
type Capture struct {
	rt      *Runtime
	made    *made
	pool    *memcache.Pool
	kept    map[*storage]uint64 // the version of each when the first operation named it
	before  []func() error      // each replay
	failed  []func()
	refused error // of the first operation that can't be captured
	faults  bool  // a kernel may note a fault
	scalars scalars

	operations map[string]int // by name, if OnOperation was given
}

// made is of the memory that a capture has made: its graph, while there is one, writes it at each replay.
type made struct {
	replays atomic.Uint64
	closed  atomic.Bool // the graph
}

// Capturing is the capture of the runtime's stream that is under way ([Runtime.Capture]), or nil.
func (rt *Runtime) Capturing() *Capture {
	if rt == nil {
		return nil
	}
	return rt.capturing.Load()
}

// Pool is where the memory that is allocated meanwhile comes from.
func (c *Capture) Pool() *memcache.Pool { return c.pool }

// OnReplay calls f before each replay, behind what was given to OnReplay and [Scalars] before, on the goroutine that replays. f does
// what the captured function would have done in Go, such as to count the step. Work that f queues runs
// before the graph. After an error of f nothing is replayed. The nil Capture calls f now, because a
// step that is not captured runs at once.
func (c *Capture) OnReplay(f func() error) error {
	if f == nil {
		return fmt.Errorf("tensor: OnReplay: %w: the function is nil", ErrInvalid)
	}
	if c == nil {
		return f()
	}
	c.before = append(c.before, f)
	return nil
}

// OnFailure calls f if there will be no graph, after the capture has ended, in the reverse order. A nil f is left out.
func (c *Capture) OnFailure(f func()) {
	if f != nil {
		c.failed = append(c.failed, f)
	}
}

// Refuse is the error of an operation that can't be captured, which wraps [ErrCapturing]: why says what to do instead. The capture
// goes on, and fails with it when its function has returned.
func (c *Capture) Refuse(op, why string) error {
	err := fmt.Errorf("tensor: %s: %w: %s", op, ErrCapturing, why)
	if c.refused == nil {
		c.refused = err
	}
	return err
}

// refuseCaptured is an error if the stream is captured.
func (rt *Runtime) refuseCaptured(op, why string) error {
	if c := rt.capturing.Load(); c != nil {
		return c.Refuse(op, why)
	}
	return nil
}

const (
	hostReads  = "the host waits for elements: read them after a replay"
	hostWrites = "the host's memory is copied once: make the tensor before the capture, and overwrite it before each replay"
	hostWaits  = "nothing has run yet that could be waited for: wait after a replay"
)

// admits tells whether memory with this context is the capture's. The nil Capture admits all.
func (c *Capture) admits(ctx context.Context, op string) error {
	if c == nil || c.rt.cache.PoolOf(ctx) == c.pool {
		return nil
	}
	return c.Refuse(op, fmt.Sprintf("its memory would come from the %v, and that of a capture comes from the %v: use the context that the function was given",
		c.rt.cache.PoolOf(ctx), c.pool))
}

// keep keeps memory that an operation names, unless the capture's function has made it.
func (c *Capture) keep(stores []*storage) {
	for _, s := range stores {
		if s.made == c.made {
			continue
		}
		if _, ok := c.kept[s]; !ok && s.retain() {
			s.graphs.Add(1)
			c.kept[s] = s.version.Load()
		}
	}
}

// kept is memory that a graph keeps.
type kept struct {
	*storage
	writes uint64 // of each replay
}

// end gives what is kept to a graph.
func (c *Capture) end() []kept {
	all := make([]kept, 0, len(c.kept))
	for s, version := range c.kept {
		all = append(all, kept{s, s.version.Load() - version})
	}
	return all
}

func releaseKept(ctx context.Context, all []kept) (errs []error) {
	for _, k := range all {
		k.graphs.Add(-1)
		errs = append(errs, k.release(ctx))
	}
	return errs
}

// capturable is the runtime's stream, if its work can be captured.
func (rt *Runtime) capturable() (device.GraphCapturer, error) {
	s, ok := rt.stream.(device.GraphCapturer)
	if !ok {
		return nil, fmt.Errorf("tensor: Capture: %w: the streams of device %s don't capture", ErrUnsupported, rt.Device().Name())
	}
	return s, notByHand(rt.stream)
}

// notByHand is an error if the program captures a runtime's stream by itself: what is queued there becomes a part of a graph that nobody here knows.
func notByHand(s device.Stream) error {
	if c, ok := s.(device.GraphCapturer); ok && c.Capturing() {
		return fmt.Errorf("%w: the program captures stream %d by BeginCapture: end that before", ErrCapturing, s.ID())
	}
	return nil
}
