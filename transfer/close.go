package transfer

import (
	"context"
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"
)

// Close waits for calls that are running and for every copy, and gives all pinned memory back to the
// driver: also that of buffers that are still out, which must not be touched any more. It returns an error
// that counts those, and the errors of earlier frees that nobody could be told about. It leaves no
// goroutine. Calling it again returns the same error.
//
// The pool's streams and device must be open or properly closed: a stream that is stuck holds up Close.
func (p *Pool) Close() error {
	p.closing.Do(func() { p.closeErr = p.close() })
	return p.closeErr
}

func (p *Pool) close() error {
	p.gate.shut()
	var errs []error
	for _, m := range p.marks() {
		// An error here is the device's: it is dead, and the copies with it.
		_ = m.quietWait(context.Background())
	}
	p.mu.Lock()
	p.collect()
	victims := p.drain()
	var out, outBytes int64
	for p.first != nil {
		s := p.first
		out++
		outBytes += int64(s.owner.Len())
		p.takeBack(s)
		p.disown([]*slab{s})
		victims = append(victims, s)
	}
	p.mu.Unlock()
	if out > 0 {
		errs = append(errs, fmt.Errorf("transfer: Close of the pool of %s with %d buffers of %s out: Release them first",
			p.dev.Name(), out, humanize.IBytes(uint64(outBytes))))
	}
	p.freeAll(context.Background(), victims)
	if err := p.unpark(); err != nil {
		errs = append(errs, fmt.Errorf("transfer: Close: %w", err))
	}
	if p.notifier != nil {
		p.notifier.close()
	}
	p.events.close()
	return errors.Join(errs...)
}

// marks are those of released buffers and of buffers that are out, which end here.
func (p *Pool) marks() []*mark {
	p.mu.Lock()
	var marks []*mark
	var owners []*Buffer
	for _, q := range p.queues {
		for _, w := range q.entries {
			marks = append(marks, w.mark)
		}
	}
	for s := p.first; s != nil; s = s.next {
		if s.owner != nil {
			owners = append(owners, s.owner)
		}
	}
	p.mu.Unlock()
	for _, b := range owners {
		b.mu.Lock()
		b.closed = true
		for _, u := range b.uses {
			marks = append(marks, u.mark)
		}
		b.mu.Unlock()
	}
	return marks
}
