package trace

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
)

// Communicator is a [device.Communicator] whose operations are observed: each is a span and in the metrics, if its Tracer says so, and in the profile of its
// step, if it is a Profiler's. What it is about is an operation, or a group as one:
//
//	comm, err := tracer.Communicator(ctx, inner)
//	dp, err := parallel.New(ctx, comm, model, parallel.Config{})
//	profiler, err := trace.NewProfiler(trace.ProfilerConfig{Cache: cache, Stream: stream, Communicator: comm, Tracer: tracer})
//
// An operation's time is the device's, from when the stream comes to it to when this rank is done with it, the waiting for other ranks included: who comes last waits the
// least. It is taken by two timed events on the operation's stream. They are read when they are complete, by a later operation outside of steps, by the Profiler, or by Close; only then
// is there a span, with the device's times. A span has the communicator's error, if it is seen to end after the communicator has failed.
//
// An operation that is captured runs with its graph, which is one launch, and has no time of its own. Each replay counts it: in the metric of bytes, in
// [StepProfile].ReplayedCollectives of the step that it is in, and on that step's span. It has no span, and there is no number of its replays. Where nothing records, an operation costs some nanoseconds more and nothing on the Go heap.
//
// Its methods are those of the communicator that it was made of, which it owns: Close closes both.
type Communicator struct {
	inner  device.Communicator
	tracer *Tracer         // nil: there are no spans and metrics
	ctx    context.Context // of what is in no step
	size   int

	step     atomic.Pointer[Step] // of a Profiler, that began last; nil: none is open
	matched  int64                // operations that all ranks have queued; as grouped, of who calls
	grouping bool                 // a group is open, with what it has so far and its stream
	grouped  tally
	within   device.Stream

	series sync.Map // collectiveSeries -> metric.MeasurementOption
	naming sync.Once
	hash   string
	drain  chan struct{} // held by the one goroutine that reads events
	clock  deviceClock   // opened by the first operation that gets a span

	mu      sync.Mutex // never held while the driver, or who makes spans, is called
	flights []*flight  // in the order of the operations
	err     error      // the first that nobody could be told
}

var _ device.Communicator = (*Communicator)(nil)

// Communicator makes a Communicator of comm. Operations that are in no step of a [Profiler] have the spans in ctx for a parent. Of a nil Tracer it has no spans
// and metrics, and serves profiles. A comm of another rank or size than [Config] says is an error that wraps [ErrInvalid]; so is one that is observed already.
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

// Device is the communicator's device.
func (c *Communicator) Device() device.Device { return c.inner.Device() }

// ID is what all ranks have made it with.
func (c *Communicator) ID() device.CommunicatorID { return c.inner.ID() }

// Rank is this rank, from 0 on.
func (c *Communicator) Rank() int { return c.inner.Rank() }

// Size is the number of ranks.
func (c *Communicator) Size() int { return c.size }

// AllReduce is [device.Communicator]'s, observed; so are the operations that follow.
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

// AsyncError is what has ended the communicator, or nil.
func (c *Communicator) AsyncError() error { return c.inner.AsyncError() }

// Abort ends the communicator on all ranks, without waiting.
func (c *Communicator) Abort() error { return c.inner.Abort() }

// Close closes the communicator, and then ends the spans that are left. It also returns the first error
// of reading an operation's time or place, although the operation itself is done. A second Close does
// nothing.
func (c *Communicator) Close() error {
	err := c.inner.Close()
	_ = c.poll(nil, true, synchronize) // an error is kept
	c.mu.Lock()
	kept := c.err
	c.err = nil
	c.mu.Unlock()
	return errors.Join(err, kept, c.clock.close())
}

// keep remembers an error for Close.
func (c *Communicator) keep(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
}

// String has the rank and the device.
func (c *Communicator) String() string {
	return fmt.Sprintf("traced rank %d of %d on %s", c.inner.Rank(), c.size, c.inner.Device().Name())
}
