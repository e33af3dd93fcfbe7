package trace

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
)

// Communicator observes the operations of a [device.Communicator]. Each operation, or a group as
// one, is a span and counts in the metrics of its Tracer. It is also in the profile of its step if
// a Profiler has the Communicator:
//
//	comm, err := tracer.Communicator(ctx, inner)
//	dp, err := parallel.New(ctx, comm, model, parallel.Config{})
//	profiler, err := trace.NewProfiler(trace.ProfilerConfig{
//		Cache: cache, Stream: stream, Communicator: comm, Tracer: tracer,
//	})
//
// The time of an operation is measured on the device. It begins when the stream reaches the
// operation and ends when this rank has finished it, so it includes the wait for other ranks, and
// the last rank to arrive waits the least. Two timed events on the operation's stream measure it.
// They are read when they are complete: by a later operation outside of steps, by the Profiler, or
// by Close. The span is made only then, with the device's times. It has the communicator's error if
// it ends after the communicator has failed.
//
// A captured operation runs with its graph, which is one launch, and has no time of its own. Each
// replay counts it: in the metric of bytes, in [StepProfile].ReplayedCollectives of its step, and
// on that step's span. It has no span and no number. If nothing records, an operation costs some
// nanoseconds more and allocates nothing on the Go heap.
//
// The methods have the contracts of the wrapped communicator. The Communicator owns it: Close
// closes both.
type Communicator struct {
	inner  device.Communicator
	tracer *Tracer         // nil: no spans and metrics
	ctx    context.Context // of operations outside of steps
	size   int

	step atomic.Pointer[Step] // of a Profiler: the step that began last; nil: none is open
	// The next four need no lock, because a communicator's calls are made in order.
	matched  int64 // queued operations that all ranks call
	grouping bool  // a group is open; the next two are its calls so far and its stream
	grouped  tally
	within   device.Stream

	series sync.Map // collectiveSeries -> metric.MeasurementOption
	naming sync.Once
	hash   string
	drain  chan struct{} // held by the one goroutine that reads events
	clock  deviceClock   // opened by the first operation that gets a span

	mu      sync.Mutex // not held while the driver or the tracer is called
	flights []*flight  // in the order of the operations
	err     error      // the first that no call has returned
}

var _ device.Communicator = (*Communicator)(nil)

// Communicator returns a Communicator that observes comm. Operations outside of the steps of a
// [Profiler] have the span in ctx as their parent. From a nil Tracer the Communicator has no spans
// and metrics, but serves profiles. It is an error that wraps [ErrInvalid] if the rank or size of
// comm differs from [Config], or if comm is already a Communicator of this package.
func (t *Tracer) Communicator(ctx context.Context, comm device.Communicator) (*Communicator, error) {
	if ctx == nil || comm == nil {
		return nil, fmt.Errorf("trace: Communicator: %w: the context and the communicator must not be nil", ErrInvalid)
	}
	if _, again := comm.(*Communicator); again {
		return nil, fmt.Errorf("trace: Communicator: %w: it is observed already, and would be counted twice", ErrInvalid)
	}
	if t.off() {
		t = nil
	} else if err := t.agree(comm); err != nil {
		return nil, fmt.Errorf("trace: Communicator: %w", err)
	}
	return &Communicator{inner: comm, tracer: t, ctx: ctx, size: comm.Size(), drain: make(chan struct{}, 1)}, nil
}

// Device returns the communicator's device.
func (c *Communicator) Device() device.Device { return c.inner.Device() }

// ID returns the id that all ranks used to create the communicator.
func (c *Communicator) ID() device.CommunicatorID { return c.inner.ID() }

// Rank returns this rank, from 0 on.
func (c *Communicator) Rank() int { return c.inner.Rank() }

// Size returns the number of ranks.
func (c *Communicator) Size() int { return c.size }

// AllReduce is [device.Communicator]'s, observed.
func (c *Communicator) AllReduce(s device.Stream, dst, src device.Ptr, count int64, t device.DataType, op device.ReduceOp) error {
	o := c.begin(s, tallyOf(opAllReduce, t, count, c.size))
	return o.end(c.inner.AllReduce(s, dst, src, count, t, op))
}

// Broadcast is [device.Communicator]'s, observed.
func (c *Communicator) Broadcast(s device.Stream, dst, src device.Ptr, count int64, t device.DataType, root int) error {
	o := c.begin(s, tallyOf(opBroadcast, t, count, c.size))
	return o.end(c.inner.Broadcast(s, dst, src, count, t, root))
}

// AllGather is [device.Communicator]'s, observed.
func (c *Communicator) AllGather(s device.Stream, dst, src device.Ptr, count int64, t device.DataType) error {
	o := c.begin(s, tallyOf(opAllGather, t, count, c.size))
	return o.end(c.inner.AllGather(s, dst, src, count, t))
}

// ReduceScatter is [device.Communicator]'s, observed.
func (c *Communicator) ReduceScatter(s device.Stream, dst, src device.Ptr, count int64, t device.DataType, op device.ReduceOp) error {
	o := c.begin(s, tallyOf(opReduceScatter, t, count, c.size))
	return o.end(c.inner.ReduceScatter(s, dst, src, count, t, op))
}

// Send is [device.Communicator]'s, observed.
func (c *Communicator) Send(s device.Stream, src device.Ptr, count int64, t device.DataType, peer int) error {
	o := c.begin(s, tallyOf(opSend, t, count, c.size))
	return o.end(c.inner.Send(s, src, count, t, peer))
}

// Recv is [device.Communicator]'s, observed.
func (c *Communicator) Recv(s device.Stream, dst device.Ptr, count int64, t device.DataType, peer int) error {
	o := c.begin(s, tallyOf(opRecv, t, count, c.size))
	return o.end(c.inner.Recv(s, dst, count, t, peer))
}

// Barrier is [device.Communicator]'s, observed.
func (c *Communicator) Barrier(s device.Stream) error {
	o := c.begin(s, tallyOf(opBarrier, device.Int32, 0, c.size))
	return o.end(c.inner.Barrier(s))
}

// GroupStart begins a group.
func (c *Communicator) GroupStart() error {
	err := c.inner.GroupStart()
	if err == nil {
		c.grouping, c.grouped, c.within = true, tally{}, nil
	}
	return err
}

// GroupEnd queues the group, which is observed as one operation.
func (c *Communicator) GroupEnd() error {
	g, s := c.grouped, c.within
	c.grouping, c.grouped, c.within = false, tally{}, nil
	if g.calls == 0 {
		return c.inner.GroupEnd()
	}
	o := c.begin(s, g)
	return o.end(c.inner.GroupEnd())
}

// AsyncError returns the error that ended the communicator, or nil.
func (c *Communicator) AsyncError() error { return c.inner.AsyncError() }

// Abort ends the communicator on all ranks, without waiting.
func (c *Communicator) Abort() error { return c.inner.Abort() }

// Close closes the communicator, and then ends the remaining spans. It also returns the first error
// of reading an operation's time or of placing it on the host's clock, although the operation
// itself has succeeded. A second Close does nothing.
func (c *Communicator) Close() error {
	err := c.inner.Close()
	_ = c.poll(nil, true, synchronize) // an error is kept
	c.mu.Lock()
	kept := c.err
	c.err = nil
	c.mu.Unlock()
	return errors.Join(err, kept, c.clock.close())
}

// keep stores an error for Close.
func (c *Communicator) keep(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
}

// String returns the rank and the device.
func (c *Communicator) String() string {
	return fmt.Sprintf("traced rank %d of %d on %s", c.inner.Rank(), c.size, c.inner.Device().Name())
}
