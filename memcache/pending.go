package memcache

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// pendingFrees are the blocks that were freed while other streams may still use them (Block.RecordStream). For each such
// stream an event was recorded at the free; when the last event of a block is complete, the block is free. Nobody is told
// that an event is complete: requests ask, each time before they look for a free chunk, as PyTorch's do. A callback of the
// driver in place of that would run on a thread of the driver, where the driver must not be called, and would make the moment
// at which memory returns, and so every later address, a matter of chance.
//
// Each shard has its own: a request asks for its own stream's blocks, as it could use no others; a miss asks for those of
// all shards, before it takes memory from the driver. With Exact there is one for all shards, and each request asks for everything, as
// PyTorch's do: it shows in the order of completions and in the statistics, not in addresses.
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
	events      atomic.Int64 // in the queues: what a request looks at
	mu          sync.Mutex
	queues      []*eventQueue // not empty, by stream: the order in which completions are seen
	lastNumber  uint64        // of the last event that was pushed
	spare       *pendingEvent // unused ones, linked by next
	emptyQueues *eventQueue   // the same
	closed      bool

	// See deferred.go.
	entered       atomic.Int32 // with Exact, contexts of pools; changed under mu
	deferred      []*handout
	deferredCount atomic.Int32 // of them; changed under mu
}

// eventQueue are the events of one stream, the earliest first.
type eventQueue struct {
	stream     uint64
	head, tail *pendingEvent
	next       *eventQueue
}

// record records an event on each stream that uses the freed block h. Recording may wait for a full
// queue, so no lock is held; nobody else changes its uses until its last event is complete and
// recordingDone was called. inFree says that the call is Free's.
func (p *pendingFrees) record(h *handout, inFree bool) error {
	if len(h.uses) > 0 && p.deferFree(h) {
		return nil
	}
	var errs []error
	for _, stream := range h.uses {
		// Whatever fails, each stream ends up either in the queues or counted as done: the block is never lost.
		e, err := p.recordEvent(stream)
		if err != nil {
			errs = append(errs, err)
		}
		if err := p.push(stream, e, h); err != nil {
			errs = append(errs, err)
		}
	}
	if p.recordingDone(h) {
		p.complete(h, inFree)
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
		e, err = p.shards.events.Get()
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
	p.events.Add(1)
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
	h.forgetUses()
	return h.eventsLeft == 0
}

// poll ends the frees of the blocks whose events are complete (process_events), in the order in which they were seen to be.
// It never waits. requested is the stream of the request that asks, or nil. No lock is held.
func (p *pendingFrees) poll(requested device.Stream) error {
	if p.deferredCount.Load() > 0 {
		p.reuseDeferred(requested)
		if err := p.recordDeferred(); err != nil {
			return err
		}
	}
	if p.entered.Load() > 0 {
		return nil
	}
	return p.pollOf(nil)
}

// pollOf is poll of the blocks of a private pool alone; nil: of all blocks.
func (p *pendingFrees) pollOf(pool *placement.Pool) error {
	done, err := p.takeCompleted(pool)
	for done != nil {
		h := done
		done, h.next = h.next, nil
		p.complete(h, false)
	}
	return err
}

// takeCompleted takes the complete events out, and returns the blocks whose last event that was, in order, linked by next. After
// an error the events that were not looked at stay. Those of blocks that are not of the pool stay, too, unless it is nil.
func (p *pendingFrees) takeCompleted(pool *placement.Pool) (done *handout, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Queues that are not empty are kept in place, in order. Within a queue the first event that is not complete ends the
	// walk: later ones are not complete either.
	last := &done
	kept := p.queues[:0]
	for i, q := range p.queues {
		at := &q.head
		var before *pendingEvent // *at, which stays
		for *at != nil {
			e := *at
			if pool != nil && e.handout.chunk.Segment().Pool() != pool {
				at, before = &e.next, e
				continue
			}
			ready, err := e.completed(e.event.Query())
			if err != nil {
				p.queues = append(kept, p.queues[i:]...)
				return done, fmt.Errorf("memcache: querying the event of a freed block: %w", err)
			}
			if !ready {
				break
			}
			if *at = e.next; e.next == nil {
				q.tail = before
			}
			last = p.ended(e, last)
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

// ended ends an event that is out of its queue, and links its block at last if it was the block's last one. It returns where the next one is linked. p.mu is held.
func (p *pendingFrees) ended(e *pendingEvent, last **handout) **handout {
	notNegative("the number of pending events", p.events.Add(-1))
	h := e.handout
	e.handout = nil
	if e.pins == 0 {
		p.keepSpare(e)
	}
	// While its Free still records events the block stays, even if none is left: see recordingDone.
	notNegative("a block's number of events", int64(h.eventsLeft)-1)
	if h.eventsLeft--; h.eventsLeft > 0 || h.recording {
		return last
	}
	*last = h
	return &h.next
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

// foreign is s if it is another device's, or nil.
func (p *pendingFrees) foreign(s device.Stream) device.Stream {
	if s.Device() != p.shards.events.Device {
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
	return p.shards.events.Put(e)
}

// keepSpare gives e's event back, and keeps e for the next free. p.mu is held.
func (p *pendingFrees) keepSpare(e *pendingEvent) {
	_ = p.putEvent(e.event, e.foreign)
	*e = pendingEvent{next: p.spare}
	p.spare = e
}

// poisonBlock fills a freed block, which nobody has, in the order of its stream: what still uses it there finds
// the poison, and what uses it elsewhere without an event is a data race. A failed or closed stream runs
// nothing any more. In a capture that is noted, and done in each replay, so there a private pool's memory alone, of which the
// graph's is: what was allocated before, and is freed in the capture, somebody else has when the graph is replayed.
func poisonBlock(h *handout) {
	if h.chunk.Segment().Pool() == nil && captured([]device.Stream{h.shard.stream}) {
		return
	}
	_ = h.shard.stream.Memset(h.chunk.Ptr(), poison, h.chunk.Size())
}
