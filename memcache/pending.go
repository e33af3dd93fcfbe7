package memcache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/device"
)

// pending are the freed blocks that wait for events, one queue for each stream that an event was recorded
// on: the events of one stream complete in order, and no stream holds up another.
type pending struct {
	queues []*queue // not empty, by stream: the order in which completions are seen
	number uint64   // of the last waiting that was pushed
	spare  *waiting
}

type queue struct {
	stream     uint64
	head, tail *waiting
}

// waiting is one event of a freed block. It is reused, with its event.
type waiting struct {
	event  device.Event
	meta   *meta // nil when it is complete
	number uint64
	pins   int // goroutines that wait for the event without the lock
	next   *waiting
}

func (p *pending) push(stream uint64, w *waiting) {
	p.number++
	w.number, w.next = p.number, nil
	i, ok := slices.BinarySearchFunc(p.queues, stream, func(q *queue, stream uint64) int { return cmp.Compare(q.stream, stream) })
	if ok {
		q := p.queues[i]
		q.tail.next = w
		q.tail = w
		return
	}
	p.queues = slices.Insert(p.queues, i, &queue{stream: stream, head: w, tail: w})
}

// unused returns a waiting whose event may be recorded, or nil.
func (p *pending) unused() *waiting {
	w := p.spare
	if w != nil {
		p.spare, w.next = w.next, nil
	}
	return w
}

func (p *pending) reuse(w *waiting) {
	w.meta, w.next = nil, p.spare
	p.spare = w
}

// close closes the events.
func (p *pending) close() error {
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

// poll releases the blocks whose events are complete (process_events). It never waits. c.mu is held.
func (c *Cache) poll() error {
	p := &c.pending
	for i := 0; i < len(p.queues); {
		q := p.queues[i]
		for q.head != nil {
			done, err := q.head.event.Query()
			if err != nil {
				return fmt.Errorf("memcache: querying the event of a freed block: %w", err)
			}
			if !done {
				break
			}
			w := q.head
			q.head = w.next
			c.complete(w)
		}
		if q.head == nil {
			p.queues = append(p.queues[:i], p.queues[i+1:]...)
		} else {
			i++
		}
	}
	return nil
}

// complete counts one event of a freed block. c.mu is held.
func (c *Cache) complete(w *waiting) {
	m := w.meta
	w.meta = nil
	if w.pins == 0 {
		c.pending.reuse(w)
	}
	if m.events--; m.events == 0 && len(m.uses) == 0 {
		c.release(m)
	}
}

// settle waits until all events that are pending now are complete, and releases their blocks.
func (c *Cache) settle(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.pending.number
	for {
		w := c.pending.oldest()
		if w == nil || w.number > last {
			return nil
		}
		w.pins++
		c.mu.Unlock()
		err := w.event.Synchronize(ctx)
		c.mu.Lock()
		if w.pins--; w.pins == 0 && w.meta == nil {
			c.pending.reuse(w)
		}
		if err != nil {
			return fmt.Errorf("memcache: waiting for freed blocks: %w", err)
		}
		if err := c.poll(); err != nil {
			return err
		}
	}
}

func (p *pending) oldest() *waiting {
	var first *waiting
	for _, q := range p.queues {
		if first == nil || q.head.number < first.number {
			first = q.head
		}
	}
	return first
}
