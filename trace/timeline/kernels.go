package timeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/cistern-ml/cistern/device"
)

// The times of a kernel are those of two timed events around it. They are read when they are
// complete, at a later launch, at a step, or in Flush. The device's clock maps them to the host's
// times (clock.go).

// kernels are the launched kernels that are not written yet.
type kernels struct {
	drain   chan struct{} // held by the one goroutine that reads events
	renewal time.Duration // of the clocks
	closing context.Context
	stop    context.CancelFunc // ends closing

	mu     sync.Mutex        // no driver call is made with it held
	clocks map[uint64]*clock // by device
	queues map[uint64]*queue // by stream; an empty one is removed
	seen   int
	closed bool
	err    error // the first that no call has returned
}

// queue is a stream's kernels, in their order.
type queue struct {
	process, group string
	list           []kernel
}

type kernel struct {
	name          string
	launched      time.Duration
	before, after device.Event // the same event, for an end of a step
	clock         *clock
	call          *call   // that launched it; nil for an end of a step
	step          *extent // that begins or, if last is set, ends here; nil for a kernel
	last          bool
}

// errNoClock is about kernels whose device has no clock.
var errNoClock = errors.New("the device's clock is unknown")

// drainEvery is the number of launches after which one looks for complete kernels.
const drainEvery = 64

// Launching observes the kernels of a stream, as [device.StreamOptions].Launching. It does not
// block. It ignores a nil stream.
func (t *Timeline) Launching(s device.Stream, name string) func(error) {
	if s == nil || t.off.Load() {
		return nil
	}
	k := &t.kernels
	c := k.clockOf(t, s)
	if c == nil {
		return nil
	}
	before := k.mark(s)
	if before == nil {
		return nil
	}
	call, alone := t.launches(s), false
	if call == nil {
		call, alone = t.alone(name), true
	}
	launched := t.now()
	return func(err error) {
		if alone {
			t.launched(call, err)
		}
		if err != nil {
			k.discard(before)
			return
		}
		if after := k.mark(s); after == nil {
			k.discard(before)
		} else if k.add(s, kernel{name: name, launched: launched, before: before, after: after, clock: c, call: call}) {
			k.drainNow(t)
		}
	}
}

// mark records a timed event; nil: that failed, and Flush returns the error.
func (k *kernels) mark(s device.Stream) device.Event {
	e, err := s.Device().NewEvent(device.EventOptions{Timed: true})
	if err != nil {
		k.keep(fmt.Errorf("making a timed event: %w", err))
		return nil
	}
	if err := s.Record(e); err != nil {
		k.keep(fmt.Errorf("recording a timed event on stream %d: %w", s.ID(), err))
		k.discard(e)
		return nil
	}
	return e
}

// release discards the kernel's events.
func (k *kernels) release(l kernel) {
	if l.before != l.after {
		k.discard(l.before)
	}
	k.discard(l.after)
}

func (k *kernels) discard(e device.Event) {
	if err := e.Close(); err != nil {
		k.keep(err)
	}
}

func (k *kernels) keep(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.err = err
	}
}

// add queues a kernel, and reports whether it is time to drain.
func (k *kernels) add(s device.Stream, l kernel) bool {
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		k.release(l)
		return false
	}
	q := k.queues[s.ID()]
	if q == nil {
		if k.queues == nil {
			k.queues = make(map[uint64]*queue)
		}
		q = &queue{process: s.Device().Name(), group: fmt.Sprintf("stream %d", s.ID())}
		k.queues[s.ID()] = q
	}
	q.list = append(q.list, l)
	k.seen++
	due := k.seen%drainEvery == 0
	k.mu.Unlock()
	return due
}

// drainNow writes the complete kernels, unless another goroutine is writing.
func (k *kernels) drainNow(t *Timeline) {
	select {
	case k.drain <- struct{}{}:
	default:
		return
	}
	defer func() { <-k.drain }()
	var unwaited context.Context
	_ = k.write(unwaited, t) // an error is kept
}

// wait waits for all kernels added so far and writes them.
func (k *kernels) wait(ctx context.Context, t *Timeline) error {
	select {
	case k.drain <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-k.drain }()
	if err := k.write(ctx, t); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.err
	k.err = nil
	return err
}

// close is wait. Later kernels are ignored, and unused clocks are not waited for.
func (k *kernels) close(t *Timeline) error {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	err := k.wait(context.Background(), t)
	k.stop()
	k.mu.Lock()
	clocks := k.clocks
	k.clocks = nil
	k.mu.Unlock()
	for _, c := range clocks {
		<-c.placed
		if c.event != nil {
			err = errors.Join(err, c.event.Close())
		}
	}
	return err
}

// write writes the complete kernels at the heads of their streams; with a context it waits for
// them. If the context ends, write returns its error and the kernel stays. After another error the
// kernel is left out. The drain is held.
func (k *kernels) write(ctx context.Context, t *Timeline) error {
	done := device.Event.Query
	if ctx != nil {
		done = func(e device.Event) (bool, error) { return true, e.Synchronize(ctx) }
	}
	k.mu.Lock()
	queues := maps.Clone(k.queues)
	k.mu.Unlock()
	for id, q := range queues {
		for {
			k.mu.Lock()
			if len(q.list) == 0 {
				delete(k.queues, id) // the stream may never launch again
				k.mu.Unlock()
				break
			}
			l := q.list[0]
			k.mu.Unlock()
			if ok, err := l.clock.isPlaced(ctx); err != nil {
				return err
			} else if !ok {
				break
			}
			var r reading
			err := errNoClock
			if !l.clock.failed.Load() {
				r, err = l.clock.read(t, l, done)
			}
			if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
				return err
			}
			if err == nil && !r.done {
				break
			}
			k.mu.Lock()
			q.list[0] = kernel{}
			q.list = q.list[1:]
			k.mu.Unlock()
			if err != nil {
				// A missing clock has reported its reason before.
				k.keep(fmt.Errorf("the times of kernel %q: %w", l.name, err))
			} else if l.step != nil {
				t.bound(q, l, r)
			} else {
				t.kernel(q, l, r)
			}
			if err == nil && l.clock.stale(r) {
				k.discard(l.clock.renew(l.after, r))
				if l.after = l.before; l.step != nil { // the clock now owns its only event
					continue
				}
			}
			k.release(l)
		}
	}
	return nil
}

// kernel writes a kernel. It can't have begun before the previous one on the stream ended, although
// the events of several launching goroutines may enclose each other's kernels.
func (t *Timeline) kernel(q *queue, l kernel, r reading) {
	late := max(0, l.launched-r.from) // the clock is wrong by that
	name, replay := l.name, l.name == "graph" && l.call.about != ""
	if replay {
		name = l.call.name
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	at, from, to := t.lanes.of(q.process, q.group).queued(r.from+late, r.to+late, r.own)
	t.file.add(span{name: name, kind: "kernel", from: from, to: to, args: l.call.kernelArgs(replay)}.event(at))
	t.flows++
	t.file.add(event{phase: "s", at: l.call.at, name: "launch", kind: "launch", from: l.launched, id: t.flows})
	t.file.add(event{phase: "f", at: at, name: "launch", kind: "launch", from: from, id: t.flows})
}
