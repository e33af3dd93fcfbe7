package transfer

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/dustin/go-humanize"
)

// Close has four steps. It refuses new calls and waits for running ones. It makes the shards refuse
// released buffers, so that each slab is either in a shard or out. It waits for every copy, because
// the driver must not free memory that a copy uses. Finally it frees everything, including buffers
// that are out. Those are a mistake of the program, and the error counts them; their memory is
// freed so that a closed pool never holds any.

// Close waits for running calls and for every copy, and frees all pinned memory. That includes the
// memory of buffers that are still out, which must not be touched any more. The error counts those
// buffers and includes errors of earlier frees that no call could return. Close leaves no goroutine
// running. Calling it again returns the same error.
//
// The pool's streams and device must be open or properly closed. A stream that is stuck blocks
// Close.
func (p *Pool) Close() error {
	p.closing.Do(func() { p.closeErr = p.close() })
	return p.closeErr
}

func (p *Pool) close() error {
	p.gate.Shut()
	// From here on a Release finds its shard closed and fails.
	p.shut()
	for _, end := range p.completions() {
		// An error here is the device's: the driver waits for the copy when it frees the memory.
		if err := end.quietWait(context.Background()); err != nil {
			end.finish(err)
		}
	}
	// All copies are done, so polling empties the queues, and any slab that is not idle then is
	// out.
	c := &p.cache
	c.ledger.LockAll()
	c.pollAll()
	bytes := c.total(gaugeRequestedBytes).Current + p.pinned.registered.Current
	c.evictIdle()
	out := c.takeOut()
	victims := c.takeEvicted()
	c.ledger.UnlockAll()
	var errs []error
	if len(out) > 0 {
		errs = append(errs, fmt.Errorf("transfer: Close of the pool of %s with %d buffers of %s out: Release them first",
			p.dev.Name(), len(out), humanize.IBytes(uint64(bytes))))
	}
	for _, s := range out {
		if s.registered {
			errs = append(errs, p.pinned.unregister(context.Background(), s))
		}
	}
	p.pinned.freeAll(context.Background(), victims)
	if err := p.pinned.unpark(); err != nil {
		errs = append(errs, fmt.Errorf("transfer: Close: %w", err))
	}
	// After the frees, because they are reported to the observer too.
	if p.notifier != nil {
		p.notifier.close()
	}
	return errors.Join(errs...)
}

// takeOut removes the remaining slabs, those of buffers that are out, from the pool's statistics
// and returns them. It evicts those that the driver allocated. All shards are locked.
func (c *cache) takeOut() (out []*slab) {
	for s := c.pinned.first; s != nil; s = c.pinned.first {
		out = append(out, s)
		if s.registered {
			c.pinned.unlink(s)
		} else {
			c.evict(c.shards[0], s, gaugeActiveBytes)
		}
	}
	c.shards[0].countStopped(gaugeRequests, -c.total(gaugeRequests).Current)
	c.shards[0].countStopped(gaugeRequestedBytes, -c.total(gaugeRequestedBytes).Current)
	return out
}

// shut makes the shards refuse further Gets and Releases.
func (p *Pool) shut() {
	for delayed := true; delayed; runtime.Gosched() {
		p.cache.ledger.LockAll()
		p.closed.Store(true)
		for _, sh := range p.cache.shards {
			sh.closed = true
		}
		// A goroutine with a delayed Add first puts its slab into a list.
		delayed = p.cache.ledger.Delayed() > 0
		p.cache.ledger.UnlockAll()
	}
}

// completions returns those of released buffers and of buffers that are out.
func (p *Pool) completions() []*completion {
	var completions []*completion
	p.cache.ledger.LockAll()
	for _, sh := range p.cache.shards {
		for _, q := range sh.queues {
			for _, w := range q.entries {
				completions = append(completions, w.until)
			}
		}
	}
	p.cache.ledger.UnlockAll()
	p.pinned.mu.Lock()
	defer p.pinned.mu.Unlock()
	for s := p.pinned.first; s != nil; s = s.next {
		s.mu.Lock()
		for _, u := range s.uses {
			completions = append(completions, u.last)
		}
		s.mu.Unlock()
	}
	return completions
}
