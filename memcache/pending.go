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

// pendingFrees are the blocks that were freed while other streams may still use them (Block.RecordStream). For each such
// stream an event was recorded at the free; when the last event of a block is complete, the block is free. Nobody is told
// that an event is complete: requests ask, each time before they look for a free chunk, as PyTorch's do. A callback of the
// driver in place of that would run on a thread of the driver, where the driver must not be called, and would make the moment
// at which memory returns, and so every later address, a matter of chance.
//
// There is a queue for each stream that an event was recorded on: the events of one stream complete in order, so that a
// poll asks for the first of each queue, and no stream holds up another.
//
// An event is used again for the next free (device.EventPool), and so is the record of it that waits here. Making and
// closing an event for each free was measured: 570 ns and two allocations by Go for an allocation, RecordStream and a free
// (BenchmarkRecordStream), where it is 410 ns and none.
//
// Its lock comes after the shards', and before the event pool's; no driver's wait runs under it, only Query, which never
// waits.
type pendingFrees struct {
	shards      *shards
	mu          sync.Mutex
	queues      []*eventQueue // not empty, by stream: the order in which completions are seen
	lastNumber  uint64        // of the last event that was pushed
	spare       *pendingEvent // unused ones, linked by next
	emptyQueues *eventQueue   // the same
	events      device.EventPool
	closed      bool
}

// eventQueue are the events of one stream, the earliest first.
type eventQueue struct {
	stream     uint64
	head, tail *pendingEvent
	next       *eventQueue
}

// pendingEvent is one event of a pending block.
type pendingEvent struct {
	event   device.Event
	foreign device.Stream // set if the event is another device's, and not of the pool
	handout *handout      // nil when it is complete
	number  uint64
	pins    int // goroutines that wait for the event without the lock
	next    *pendingEvent
}

// completed turns what a query or a wait for the event says into whether the stream is done with the block. Another device
// that fails, or is closed, uses memory no more, and does not keep it from this one. While it is being closed its work
// goes on.
func (e *pendingEvent) completed(ready bool, err error) (bool, error) {
	if e.foreign == nil || err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return ready, err
	}
	return !errors.Is(err, device.ErrClosed) || e.foreign.Closed(), nil
}

// wait waits for the event or, if another device is being closed, for the stream: every Close waits, whichever is first.
func (e *pendingEvent) wait(ctx context.Context) error {
	err := e.event.Synchronize(ctx)
	if e.foreign != nil && errors.Is(err, device.ErrClosed) {
		closed := make(chan error, 1)
		go func() { closed <- e.foreign.Close() }()
		select {
		case err = <-closed:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	_, err = e.completed(true, err)
	return err
}

// record records an event on each stream that uses the freed block h. Recording may wait for a full queue, so no
// lock is held; nobody else touches its uses until its last event is complete and recordingDone was called.
func (p *pendingFrees) record(h *handout, uses []device.Stream) error {
	var errs []error
	for _, stream := range uses {
		// Whatever fails, each stream ends up either in the queues or counted as done: the block is never lost.
		e, err := p.recordEvent(stream)
		if err != nil {
			errs = append(errs, err)
		}
		if err := p.push(stream, e, h); err != nil {
			errs = append(errs, err)
		}
	}
	// The slice stays with the handout, so that the next one records without allocating; cleared, so that it keeps no stream
	// alive.
	clear(uses)
	h.uses = uses[:0]
	if p.recordingDone(h) {
		p.complete(h, true)
	}
	return errors.Join(errs...)
}

// recordEvent records an event on s. It returns nil when s has completed its work already: it is closed, or was waited for
// because no event could be had.
func (p *pendingFrees) recordEvent(s device.Stream) (device.Event, error) {
	var e device.Event
	var err error
	foreign := p.foreign(s)
	if foreign == nil {
		e, err = p.events.Get()
	} else {
		e, err = s.Device().NewEvent(device.EventOptions{})
	}
	if err != nil {
		return nil, synchronize(s)
	}
	if err := s.Record(e); err == nil {
		return e, nil
	}
	_ = p.putEvent(e, foreign)
	if s.Closed() {
		return nil, nil
	}
	return nil, synchronize(s)
}

// push adds event, which is complete when h's work on s is, to the stream's queue. If it is nil that work is done, and one
// event less of h is waited for; if the cache was closed meanwhile event is closed, since nobody would do it later.
func (p *pendingFrees) push(s device.Stream, event device.Event, h *handout) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if event == nil || p.closed {
		h.eventsLeft--
		if event != nil {
			return event.Close()
		}
		return nil
	}
	p.shards.slowWork.Add(1)
	p.lastNumber++
	e := p.spare
	if e == nil {
		e = new(pendingEvent)
	} else {
		p.spare = e.next
	}
	*e = pendingEvent{event: event, foreign: p.foreign(s), handout: h, number: p.lastNumber}
	i, found := slices.BinarySearchFunc(p.queues, s.ID(), func(q *eventQueue, stream uint64) int { return cmp.Compare(q.stream, stream) })
	if found {
		p.queues[i].tail.next = e
		p.queues[i].tail = e
		return nil
	}
	q := p.emptyQueues
	if q == nil {
		q = new(eventQueue)
	} else {
		p.emptyQueues = q.next
	}
	*q = eventQueue{stream: s.ID(), head: e, tail: e}
	p.queues = slices.Insert(p.queues, i, q)
	return nil
}

// recordingDone says that no more events of h are to come, and reports whether all are complete: then its caller ends the
// free, since the polls have left it alone. One of both does, as both look at h under p.mu.
func (p *pendingFrees) recordingDone(h *handout) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	h.recording = false
	return h.eventsLeft == 0
}

// poll ends the frees of the blocks whose events are complete (process_events), in the order in which they were seen to be.
// It never waits. No lock is held.
func (p *pendingFrees) poll() error {
	done, err := p.takeCompleted()
	for done != nil {
		h := done
		done, h.next = h.next, nil
		p.complete(h, false)
	}
	return err
}

// takeCompleted takes the complete events out, and returns the blocks whose last event that was, in order, linked by next. After
// an error the events that were not looked at stay.
func (p *pendingFrees) takeCompleted() (done *handout, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Queues that are not empty are kept in place, in order. Within a queue the first event that is not complete ends the
	// walk: those behind it are not complete either.
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
			e := q.head
			q.head = e.next
			notNegative("the number of pending events", p.shards.slowWork.Add(-1))
			h := e.handout
			e.handout = nil
			if e.pins == 0 {
				p.keepSpare(e)
			}
			// While its Free still records events the block stays, even if none is left: see recordingDone.
			notNegative("a block's number of events", int64(h.eventsLeft)-1)
			if h.eventsLeft--; h.eventsLeft == 0 && !h.recording {
				*last = h
				last = &h.next
			}
		}
		if q.head == nil {
			q.next, p.emptyQueues = p.emptyQueues, q
		} else {
			kept = append(kept, q)
		}
	}
	clear(p.queues[len(kept):])
	p.queues = kept
	return done, nil
}

// complete ends the free of a block whose last event is complete, in the call of Free itself or not. No lock is held;
// nobody else has the block.
func (p *pendingFrees) complete(h *handout, inFree bool) {
	if p.shards.poisons() {
		poisonBlock(h)
	}
	s := h.shard
	s.mu.Lock()
	ok := s.tryCompleteFree(h, inFree, false)
	s.mu.Unlock()
	if !ok {
		p.shards.lockAll()
		s.tryCompleteFree(h, inFree, true)
		p.shards.unlockAll()
	}
}

// wait waits until all events that are pending now are complete, and ends their frees. Those of frees that begin
// meanwhile it does not wait for, or it might never end. It waits without a lock: the event that it waits for is pinned,
// so that a poll which finds it complete does not hand it to another free.
func (p *pendingFrees) wait(ctx context.Context) error {
	// The oldest event first: by the time it is complete many others are, and the poll takes them all.
	p.mu.Lock()
	until := p.lastNumber
	for {
		e := p.oldest()
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
		if err := p.poll(); err != nil {
			return err
		}
		p.mu.Lock()
	}
}

// oldest is the event that was pushed first, of all streams, or nil. p.mu is held.
func (p *pendingFrees) oldest() *pendingEvent {
	var first *pendingEvent
	for _, q := range p.queues {
		if first == nil || q.head.number < first.number {
			first = q.head
		}
	}
	return first
}

// foreign is s if it is another device's, or nil.
func (p *pendingFrees) foreign(s device.Stream) device.Stream {
	if s.Device() != p.events.Device {
		return s
	}
	return nil
}

// putEvent gives an unused event back to the pool, or closes it if it is another device's: on this device's streams it
// could not be recorded.
func (p *pendingFrees) putEvent(e device.Event, foreign device.Stream) error {
	if foreign != nil {
		return e.Close()
	}
	return p.events.Put(e)
}

// keepSpare gives e's event back, and keeps e for the next free. p.mu is held.
func (p *pendingFrees) keepSpare(e *pendingEvent) {
	_ = p.putEvent(e.event, e.foreign)
	*e = pendingEvent{next: p.spare}
	p.spare = e
}

// close closes the events, and makes push close those that come later.
func (p *pendingFrees) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	errs := []error{p.events.Close()}
	for _, q := range p.queues {
		for e := q.head; e != nil; e = e.next {
			errs = append(errs, e.event.Close())
		}
	}
	p.queues, p.spare = nil, nil
	return errors.Join(errs...)
}

// synchronize waits for everything queued on s. A stream that is being closed refuses to be waited for while its work
// goes on; but every Close waits for that, whichever is first.
func synchronize(s device.Stream) error {
	err := s.Synchronize(context.Background())
	if errors.Is(err, device.ErrClosed) {
		err = s.Close()
	}
	if err != nil && !s.Closed() {
		return fmt.Errorf("memcache: Free: waiting for stream %d: %w", s.ID(), err)
	}
	return nil
}

// poisonBlock fills a freed block, which nobody has, in the order of its stream: what still uses it there finds
// the poison, and what uses it elsewhere without an event is a data race. A failed or closed stream runs
// nothing any more.
func poisonBlock(h *handout) {
	_ = h.shard.stream.Memset(h.chunk.Ptr(), poison, h.chunk.Size())
}
