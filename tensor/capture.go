package tensor

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// The memory of a captured operation's operands is kept for as long as the graph exists. Operands
// that are older than the capture are kept by a reference to their storage; otherwise their memory
// could be allocated again after a release, and a replay would overwrite it. Memory that the
// captured function allocates and frees returns to the pool, from which only captures allocate. So
// operations that are captured later can reuse it in stream order.
//
// Numbers are captured by value, except those that an operation reads from device memory. Go code
// that supplies other numbers at each replay uses Scalars; OnReplay is for everything else that it
// does in each step. Both are called before each replay in the order of the capture, which is the
// order of the step.

// Capture is a capture in progress. Operations and Go code that change from step to step register
// with it the functions that a replay calls. It belongs to the goroutine that runs the captured
// function.
type Capture struct {
	rt      *Runtime
	made    *made
	pool    *memcache.Pool
	kept    map[*storage]uint64 // the version of each at its first use
	before  []func() error      // called before each replay
	failed  []func()
	refused error // the first error of Refuse
	faults  bool  // a kernel may record a fault
	scalars scalars

	operations map[string]int // calls by name; nil without OnOperation
}

// made identifies the memory that a capture allocated. While the capture's graph exists, each
// replay overwrites this memory.
type made struct {
	replays atomic.Uint64
	closed  atomic.Bool // the graph is closed
}

// Capturing returns the capture in progress on the runtime's stream ([Runtime.Capture]), or nil.
func (rt *Runtime) Capturing() *Capture {
	if rt == nil {
		return nil
	}
	return rt.capturing.Load()
}

// Pool returns the pool from which memory is allocated during the capture.
func (c *Capture) Pool() *memcache.Pool { return c.pool }

// OnReplay calls f before each replay, on the goroutine that replays, after the functions that
// OnReplay and [Scalars] registered earlier. f does what the captured function would have done in
// Go, such as counting the step. Work that f queues runs before the graph. After an error of f
// nothing is replayed. On a nil Capture, OnReplay calls f at once, because a step that is not
// captured runs at once.
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

// OnFailure calls f after the capture has ended, if it makes no graph. Several functions are called
// in reverse order. A nil f is ignored.
func (c *Capture) OnFailure(f func()) {
	if f != nil {
		c.failed = append(c.failed, f)
	}
}

// Refuse returns the error of an operation that can't be captured, which wraps [ErrCapturing]. why
// is advice on what to do instead. The capture continues until its function returns, and then fails
// with the first such error.
func (c *Capture) Refuse(op, why string) error {
	err := fmt.Errorf("tensor: %s: %w: %s", op, ErrCapturing, why)
	if c.refused == nil {
		c.refused = err
	}
	return err
}

// refuseCaptured returns an error during a capture of the stream.
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

// admits returns an error unless memory that is allocated with ctx comes from the capture's pool.
// The nil Capture admits every context.
func (c *Capture) admits(ctx context.Context, op string) error {
	if c == nil || c.rt.cache.PoolOf(ctx) == c.pool {
		return nil
	}
	return c.Refuse(op, fmt.Sprintf("its memory would come from the %v, and that of a capture comes from the %v: use the context that the function was given",
		c.rt.cache.PoolOf(ctx), c.pool))
}

// keep retains the memory of an operation's operands, except memory that the captured function
// allocated.
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

// kept is memory that a graph retains.
type kept struct {
	*storage
	writes uint64 // per replay
}

// end returns the memory that the graph retains.
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

// capturable returns the runtime's stream if its work can be captured.
func (rt *Runtime) capturable() (device.GraphCapturer, error) {
	s, ok := rt.stream.(device.GraphCapturer)
	if !ok {
		return nil, fmt.Errorf("tensor: Capture: %w: the streams of device %s don't capture", ErrUnsupported, rt.Device().Name())
	}
	return s, notByHand(rt.stream)
}

// notByHand returns an error if the program itself captures the stream with BeginCapture. Work that
// is queued then becomes part of a graph that is unknown to this package.
func notByHand(s device.Stream) error {
	if c, ok := s.(device.GraphCapturer); ok && c.Capturing() {
		return fmt.Errorf("%w: the program is capturing stream %d with BeginCapture: end that capture first", ErrCapturing, s.ID())
	}
	return nil
}
