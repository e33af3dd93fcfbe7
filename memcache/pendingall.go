package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// Operations on the pending frees of all shards: a miss polls them, a flush waits for them, Close
// ends them. No lock is held.

// PollFrees ends the frees that waited for other streams and whose work there is complete
// (process_events), so that statistics and snapshots don't count their blocks as active any more.
// It is not needed to get memory: a request polls its own stream's frees, and one that finds no
// memory polls all; with Exact every request polls all. PollFrees never waits.
func (c *Cache) PollFrees() error {
	if invariants.Enabled {
		defer c.verify()
	}
	if stream := c.shards.history.stream(); stream != nil {
		_ = stream.enter(context.Background(), noRequest)
		defer stream.leave()
	}
	return c.shards.pollPending()
}

// allPending returns the lists of pending frees of all shards.
func (all *shards) allPending() []*pendingFrees {
	if all.exact != nil {
		return []*pendingFrees{all.exact}
	}
	var list []*pendingFrees
	for _, s := range all.list() {
		list = append(list, s.pending)
	}
	return list
}

// pollPending ends the frees of all shards whose events are complete. It never waits.
func (all *shards) pollPending() error {
	for _, s := range all.list() {
		if s.pending.events.Load() == 0 {
			continue
		}
		if err := s.pending.poll(nil); err != nil {
			return err
		}
	}
	return nil
}

// waitPending waits until all events that are pending now are complete, and ends their frees. It
// does not wait for frees that begin meanwhile, because it might then never return. With a private
// pool it waits for that pool's blocks only; nil: for all blocks.
func (all *shards) waitPending(ctx context.Context, pool *placement.Pool) error {
	list := all.allPending()
	until := make([]uint64, len(list))
	for i, p := range list {
		if err := p.recordDeferred(); err != nil {
			return err
		}
		p.mu.Lock()
		until[i] = p.lastNumber
		p.mu.Unlock()
	}
	for i, p := range list {
		if err := p.wait(ctx, until[i], pool); err != nil {
			return err
		}
	}
	return nil
}

// closePending closes the events, and makes later ones close at once.
func (all *shards) closePending() error {
	errs := []error{all.events.Close()}
	for _, p := range all.allPending() {
		errs = append(errs, p.close())
	}
	return errors.Join(errs...)
}

// wait waits until the events up to the number until are complete, and ends their frees. It waits
// without a lock. The event is pinned meanwhile, so that a poll that finds it complete does not
// reuse it for another free.
func (p *pendingFrees) wait(ctx context.Context, until uint64, pool *placement.Pool) error {
	// The oldest event first: when it is complete many others are too, and one poll takes them all.
	p.mu.Lock()
	for {
		e := p.oldest(pool)
		if e == nil || e.number > until {
			p.mu.Unlock()
			return nil
		}
		e.pins++
		p.mu.Unlock()
		err := e.wait(ctx)
		p.mu.Lock()
		if e.pins--; e.pins == 0 && e.handout == nil {
			p.keepSpare(e)
		}
		p.mu.Unlock()
		if err != nil {
			return fmt.Errorf("memcache: waiting for freed blocks: %w", err)
		}
		if err := p.pollOf(pool); err != nil {
			return err
		}
		p.mu.Lock()
	}
}

// oldest returns the event that was pushed first on any stream, or nil; with a private pool, the
// first one of that pool's blocks. p.mu is held.
func (p *pendingFrees) oldest(pool *placement.Pool) *pendingEvent {
	var first *pendingEvent
	for _, q := range p.queues {
		e := q.head
		for e != nil && pool != nil && e.handout.chunk.Segment().Pool() != pool {
			e = e.next
		}
		if e != nil && (first == nil || e.number < first.number) {
			first = e
		}
	}
	return first
}

// close closes the events, and makes push close later ones.
func (p *pendingFrees) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var errs []error
	for _, q := range p.queues {
		for e := q.head; e != nil; e = e.next {
			errs = append(errs, e.event.Close())
		}
	}
	p.queues, p.spare = nil, nil
	return errors.Join(errs...)
}
