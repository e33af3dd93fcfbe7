package memcache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cistern-ml/cistern/device"
)

// pending are the freed blocks that wait for events, one queue for each stream that an event was recorded
// on: the events of one stream complete in order, and no stream holds up another.
type pendingFrees struct {
	mu     sync.Mutex
	queues []*eventQueue // not empty, by stream: the order in which completions are seen
	number uint64        // of the last waiting that was pushed
	spare  *pendingEvent
	empty  *eventQueue // unused ones, linked by next
	closed bool
}

type eventQueue struct {
	stream     uint64
	head, tail *pendingEvent
	next       *eventQueue
}

// waiting is one event of a freed block. It is reused, with its event.
type pendingEvent struct {
	event   device.Event
	foreign device.Stream // set if the event is another device's, and not reused
	chunk   *chunk        // nil when it is complete
	number  uint64
	pins    int // goroutines that wait for the event without the lock
	next    *pendingEvent
}

// past is what a query or a wait for the event says. Another device that fails, or is closed, uses memory no more, and
// does not keep it from this one. While it is being closed its work goes on.
func (w *pendingEvent) completed(ready bool, err error) (bool, error) {
	if w.foreign == nil || err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return ready, err
	}
	return !errors.Is(err, device.ErrClosed) || w.foreign.Closed(), nil
}

// wait waits for the event or, if another device is being closed, for the stream: every Close waits, whichever is first.
func (w *pendingEvent) wait(ctx context.Context) error {
	err := w.event.Synchronize(ctx)
	if w.foreign != nil && errors.Is(err, device.ErrClosed) {
		closed := make(chan error, 1)
		go func() { closed <- w.foreign.Close() }()
		select {
		case err = <-closed:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	_, err = w.completed(true, err)
	return err
}

// push counts one of m's recorded streams as past the block, if w is nil, or adds w to the stream's queue.
func (p *pendingFrees) push(c *Cache, stream uint64, w *pendingEvent, m *chunk) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w == nil || p.closed {
		m.eventsLeft--
		if w != nil {
			return w.event.Close()
		}
		return nil
	}
	c.slowWork.Add(1)
	p.number++
	w.chunk, w.number, w.next = m, p.number, nil
	i, found := slices.BinarySearchFunc(p.queues, stream, func(q *eventQueue, stream uint64) int { return cmp.Compare(q.stream, stream) })
	if found {
		p.queues[i].tail.next = w
		p.queues[i].tail = w
		return nil
	}
	q := p.empty
	if q == nil {
		q = new(eventQueue)
	} else {
		p.empty = q.next
	}
	*q = eventQueue{stream: stream, head: w, tail: w}
	p.queues = slices.Insert(p.queues, i, q)
	return nil
}

// recorded says that no more events of m are to come, and reports whether all are complete.
func (p *pendingFrees) recordingDone(m *chunk) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	m.recording = false
	return m.eventsLeft == 0
}

// unused returns a waiting whose event may be recorded, or nil.
func (p *pendingFrees) unused() *pendingEvent {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.spare
	if w != nil {
		p.spare, w.next = w.next, nil
	}
	return w
}

func (p *pendingFrees) giveBack(w *pendingEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reuse(w)
}

// reuse keeps an unused waiting. p.mu is held.
func (p *pendingFrees) reuse(w *pendingEvent) {
	if w.foreign != nil {
		_ = w.event.Close()
		return
	}
	w.chunk, w.next = nil, p.spare
	p.spare = w
}

// close closes the events.
func (p *pendingFrees) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var errs []error
	for w := p.spare; w != nil; w = w.next {
		errs = append(errs, w.event.Close())
	}
	for _, q := range p.queues {
		for w := q.head; w != nil; w = w.next {
			errs = append(errs, w.event.Close())
		}
	}
	p.queues, p.spare = nil, nil
	return errors.Join(errs...)
}

// poll releases the blocks whose events are complete (process_events). It never waits.
func (c *Cache) poll() error {
	done, err := c.pending.poll(c)
	for done != nil {
		m := done
		done, m.nextDone = m.nextDone, nil
		c.completePending(m)
	}
	return err
}

// poll takes the complete events out, and returns the blocks whose last event that was, in order.
func (p *pendingFrees) poll(c *Cache) (done *chunk, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := &done
	kept := p.queues[:0]
	for i, q := range p.queues {
		for q.head != nil {
			ready, err := q.head.completed(q.head.event.Query())
			if err != nil {
				p.queues = append(kept, p.queues[i:]...)
				return done, fmt.Errorf("memcache: querying the event of a freed block: %w", err)
			}
			if !ready {
				break
			}
			w := q.head
			q.head = w.next
			notNegative("the number of pending events", c.slowWork.Add(-1))
			m := w.chunk
			w.chunk = nil
			if w.pins == 0 {
				p.reuse(w)
			}
			notNegative("a block's number of events", int64(m.eventsLeft)-1)
			if m.eventsLeft--; m.eventsLeft == 0 && !m.recording {
				*last = m
				last = &m.nextDone
			}
		}
		if q.head == nil {
			q.next, p.empty = p.empty, q
		} else {
			kept = append(kept, q)
		}
	}
	clear(p.queues[len(kept):])
	p.queues = kept
	return done, nil
}

// settle waits until all events that are pending now are complete, and releases their blocks.
func (c *Cache) waitForPending(ctx context.Context) error {
	p := &c.pending
	p.mu.Lock()
	until := p.number
	for {
		w := p.oldest()
		if w == nil || w.number > until {
			p.mu.Unlock()
			return nil
		}
		w.pins++
		p.mu.Unlock()
		err := w.wait(ctx)
		p.mu.Lock()
		if w.pins--; w.pins == 0 && w.chunk == nil {
			p.reuse(w)
		}
		p.mu.Unlock()
		if err != nil {
			return fmt.Errorf("memcache: waiting for freed blocks: %w", err)
		}
		if err := c.poll(); err != nil {
			return err
		}
		p.mu.Lock()
	}
}

func (p *pendingFrees) oldest() *pendingEvent {
	var first *pendingEvent
	for _, q := range p.queues {
		if first == nil || q.head.number < first.number {
			first = q.head
		}
	}
	return first
}
