package transfer

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/dustin/go-humanize"
)

// Close has four steps: no call may begin, and those that run end; shards refuse what is released
// from now on, so that each slab is either there or out; every copy is waited for, since the driver
// must not get memory that one uses; and everything goes, also what is out. Buffers that are still
// out are a mistake of the program, which the error counts; their memory is given back all the
// same, so that a closed pool never holds any.

// Close waits for calls that are running and for every copy, and gives all pinned memory back to
// the driver: also that of buffers that are still out, which must not be touched any more. It
// returns an error that counts those, and the errors of earlier frees that nobody could be told
// about. It leaves no goroutine. Calling it again returns the same error.
//
// The pool's streams and device must be open or properly closed: a stream that is stuck holds up
// Close.
func (p *Pool) Close() error {
	p.closing.Do(func() { p.closeErr = p.close() })
	return p.closeErr
}

func (p *Pool) close() error {
	p.gate.Shut()
	// A Release that comes from now on finds its shard closed, and says so.
	p.shut()
	for _, end := range p.completions() {
		// An error here is the device's: the driver waits for the copy when it frees the memory.
		if err := end.quietWait(context.Background()); err != nil {
			end.finish(err)
		}
	}
	// All copies are done: polling empties the queues, and what is then not idle is out.
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
	// After the frees, which an observer is told of too.
	if p.notifier != nil {
		p.notifier.close()
	}
	return errors.Join(errs...)
}

// takeOut takes what is left off the books: the slabs of buffers that are out, of which the driver
// gets those that it allocated. All shards are locked.
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

// shut lets shards refuse what is taken or released from now on.
func (p *Pool) shut() {
	for delayed := true; delayed; runtime.Gosched() {
		p.cache.ledger.LockAll()
		p.closed.Store(true)
		for _, sh := range p.cache.shards {
			sh.closed = true
		}
		// Who has a slab in hand that is counted as something else puts it where it belongs first.
		delayed = p.cache.ledger.Delayed() > 0
		p.cache.ledger.UnlockAll()
	}
}

// completions are those of released buffers and of buffers that are out.
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
