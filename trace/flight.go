package trace

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// observed is a call in progress. flight is nil if the call is not observed.
type observed struct {
	comm    *Communicator
	tally   tally
	capture device.ReplayNotifier // nil: not captured
	*flight
}

// flight is a queued operation.
type flight struct {
	tally
	number int64
	on     device.Stream
	step   *Step           // nil: outside of steps
	ctx    context.Context // with the parent span
	spans  bool
	queued time.Time
	anchor *anchor // nil: it is not placed on the host's clock

	before, after device.Event // timed; nil: there is no time
}

// reached is the result of reading a flight's events.
type reached struct {
	done, timed    bool
	took           time.Duration
	placed, anchor bool
	began          time.Time // by the host's clock, if placed
}

func synchronize(e device.Event) (bool, error) { return true, e.Synchronize(context.Background()) }

// begin is called before an operation is queued. The operations of a group are observed together.
func (c *Communicator) begin(s device.Stream, x tally) observed {
	o := observed{comm: c, tally: x}
	if c.grouping {
		c.grouped.add(x)
		if c.within == nil {
			c.within = s
		}
		o.comm = nil
		return o
	}
	if g, ok := s.(device.GraphCapturer); ok && g.Capturing() {
		o.capture, _ = s.(device.ReplayNotifier)
		return o
	}
	step, ctx := c.where()
	spans, timed := false, false
	if c.tracer != nil {
		var detail Detail
		ctx, detail = c.tracer.detail(ctx, Slow)
		spans, timed = detail >= Slow, c.tracer.collectiveMetrics.enabled(ctx)
	}
	if !spans && !timed && step == nil || s == nil {
		return o
	}
	o.flight = &flight{tally: x, on: s, step: step, ctx: ctx, spans: spans, queued: time.Now()}
	if spans {
		o.anchor = c.takeAnchor()
	}
	o.before = c.mark(s)
	return o
}

// end is called after an operation was queued or refused with err, which it returns.
func (o observed) end(err error) error {
	c := o.comm
	if c == nil {
		return err
	}
	number := int64(0)
	if err == nil && o.tally.matched > 0 {
		number = c.matched + 1
		c.matched += o.tally.matched
	}
	if err == nil && o.capture != nil {
		c.captured(o.capture, o.tally)
	}
	x := o.flight
	switch {
	case x == nil:
		return err
	case err != nil:
		c.discard(x)
		c.tell(x, reached{}, err)
		return err
	}
	x.number = number
	if x.before != nil {
		x.after = c.mark(x.on)
	}
	c.mu.Lock()
	c.flights = append(c.flights, x)
	if x.step != nil {
		x.step.flights++
	}
	crowded := len(c.flights) >= mostFlights
	c.mu.Unlock()
	if x.step == nil || crowded {
		_ = c.poll(nil, false, device.Event.Query) // an error is kept
	}
	return nil
}

// where returns the step of an operation that is queued now, nil outside of steps, and its context.
func (c *Communicator) where() (*Step, context.Context) {
	if s := c.step.Load(); s != nil {
		return s, s.ctx
	}
	return nil, c.ctx
}

// mostFlights is the number of open operations of steps from which on others read events, too.
const mostFlights = 1024

// mark records a timed event. It returns nil if that failed.
func (c *Communicator) mark(s device.Stream) device.Event {
	e, err := c.inner.Device().NewEvent(device.EventOptions{Timed: true})
	if err == nil {
		if err = s.Record(e); err == nil {
			return e
		}
		err = errors.Join(err, e.Close())
	}
	c.keep(fmt.Errorf("trace: timing a collective operation: %w", err))
	return nil
}

// takeAnchor takes the anchor that places an operation on the host's clock.
func (c *Communicator) takeAnchor() *anchor {
	a, err := c.clock.take(c.inner.Device())
	if err != nil {
		c.keep(fmt.Errorf("trace: placing a collective operation: %w", err))
	}
	return a
}

// discard releases a flight's events and anchor.
func (c *Communicator) discard(x *flight) {
	for _, e := range []device.Event{x.before, x.after} {
		if e == nil {
			continue
		}
		if err := e.Close(); err != nil {
			c.keep(err)
		}
	}
	if x.anchor != nil {
		if err := c.clock.give(x.anchor); err != nil {
			c.keep(err)
		}
	}
}

// poll completes finished operations in order, up to the last one of the step until, or all if
// until is nil. If another goroutine is polling, poll returns, unless wait is set. It returns only
// the error of the context of done, after which the next poll continues. Other errors are kept.
func (c *Communicator) poll(until *Step, wait bool, done func(device.Event) (bool, error)) error {
	if wait {
		c.drain <- struct{}{}
	} else {
		select {
		case c.drain <- struct{}{}:
		default:
			return nil
		}
	}
	var ended []*flight
	var told []reached
	err := func() error {
		defer func() { <-c.drain }()
		for {
			c.mu.Lock()
			if len(c.flights) == 0 || until != nil && until.flights == 0 {
				c.mu.Unlock()
				return nil
			}
			x := c.flights[0]
			c.mu.Unlock()
			r, err := c.look(x, done)
			if !r.done {
				return err
			}
			c.mu.Lock()
			c.flights[0] = nil
			c.flights = c.flights[1:]
			if s := x.step; s != nil {
				s.flights--
				if r.timed {
					s.collectives = append(s.collectives, StepCollective{Number: x.number, Operation: collectiveNames[x.op], Bytes: x.bytes, Time: r.took})
				}
			}
			c.mu.Unlock()
			c.discard(x)
			ended, told = append(ended, x), append(told, r)
		}
	}()
	for i, x := range ended { // without the drain, because this calls the SDK
		c.tell(x, told[i], c.inner.AsyncError())
	}
	return err
}

// look reads a flight's events, hidden from the race detector as in [Step.takeDeviceTime]. The
// caller holds drain.
func (c *Communicator) look(x *flight, done func(device.Event) (bool, error)) (reached, error) {
	if x.before == nil || x.after == nil {
		return reached{done: true}, nil
	}
	known := x.anchor != nil && x.anchor.reached
	dev := c.inner.Device()
	r, err := race.Quietly(func() (reached, error) { return x.read(dev, known, done) })
	if r.anchor {
		x.anchor.reached = true
	}
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		r.done = false
	case err != nil:
		c.keep(fmt.Errorf("trace: the time of a collective operation: %w", err))
		r.done, err = true, nil
	}
	return r, err
}

func (x *flight) read(dev device.Device, known bool, done func(device.Event) (bool, error)) (r reached, err error) {
	if r.done, err = done(x.after); err != nil || !r.done {
		return r, err
	}
	if r.took, err = dev.Elapsed(x.before, x.after); err != nil {
		return r, err
	}
	r.timed = true
	if x.anchor == nil {
		return r, nil
	}
	if r.anchor = known; !known {
		if r.anchor, err = done(x.anchor.event); err != nil || !r.anchor {
			r.done = false
			return r, err
		}
	}
	since, err := dev.Elapsed(x.anchor.event, x.before)
	r.began, r.placed = x.anchor.at.Add(since), err == nil
	return r, err
}

// finished reports whether all operations of a step are complete. A nil Communicator has none.
func (c *Communicator) finished(s *Step, done func(device.Event) (bool, error)) (bool, error) {
	if c == nil {
		return true, nil
	}
	err := c.poll(s, true, done)
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.flights == 0, err
}

// of returns the timed operations of a step.
func (c *Communicator) of(s *Step) []StepCollective {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.collectives
}

// tell makes the span of an operation that has ended, and its metrics.
func (c *Communicator) tell(x *flight, r reached, err error) {
	t := c.tracer
	if t == nil {
		return
	}
	from, to := x.queued, time.Now()
	if r.placed {
		// It can't begin before it is queued.
		if r.began.After(from) {
			from = r.began
		}
		to = from.Add(r.took)
	}
	ctx := x.ctx
	var span oteltrace.Span
	if x.spans {
		ctx, span = t.start(ctx, collectiveSpan+collectiveNames[x.op], oteltrace.WithTimestamp(from))
	}
	t.collectiveMetrics.record(ctx, c, x, r, err)
	if span == nil {
		return
	}
	if span.IsRecording() {
		span.SetAttributes(c.describe(x, r, from)...)
	}
	t.end(span, err, oteltrace.WithTimestamp(to))
}

// describe returns the attributes of an operation's span.
func (c *Communicator) describe(x *flight, r reached, from time.Time) []attribute.KeyValue {
	a := append(make([]attribute.KeyValue, 0, 14), KeyDevice.String(c.inner.Device().Name()), KeyStream.Int64(int64(x.on.ID())),
		KeyCollective.String(collectiveNames[x.op]), KeyCollectiveSize.Int64(x.bytes), KeyCollectiveCalls.Int(x.calls),
		KeyRank.Int(c.Rank()), KeyWorldSize.Int(c.size))
	if x.dtype != "" {
		a = append(a, KeyCollectiveType.String(x.dtype))
	}
	if x.number > 0 {
		a = append(a, KeyCollectiveNumber.Int64(x.number))
	}
	if x.step != nil {
		a = append(a, KeyStep.Int64(x.step.number))
	}
	if r.placed {
		a = append(a, KeyCollectiveQueued.Float64(from.Sub(x.queued).Seconds()))
	}
	if r.timed && r.took > 0 && x.bytes > 0 {
		a = append(a, KeyCollectiveBandwidth.Float64(float64(x.bytes)/r.took.Seconds()), KeyCollectiveBusBandwidth.Float64(x.onBus/r.took.Seconds()))
	}
	return a
}
