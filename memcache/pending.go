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

// pendingFrees is the list of blocks that were freed while other streams may still use them
// (Block.RecordStream). For each such stream an event was recorded at the free; when the last event
// of a block is complete, the block is free. There is no notification of complete events: each
// request polls before it searches for a free chunk, as in PyTorch. A driver callback instead would
// run on a driver thread, where the driver must not be called, and would make the moment at which
// memory returns, and so every later address, nondeterministic.
//
// Each shard has its own list: a request polls its own stream's blocks, because it could use no
// others, and a miss polls all shards before it allocates from the driver. With Exact all shards
// share one list, and each request polls all of it, as in PyTorch. That affects the order of
// completions and the statistics, but not addresses.
//
// There is a queue for each stream that an event was recorded on. The events of one stream complete
// in order, so a poll queries the first event of each queue, and no stream delays another.
//
// Events are reused for later frees (device.EventPool), and so are their pendingEvent records.
// Measured with BenchmarkRecordStream, an allocation, RecordStream and a free take 410 ns without a
// Go allocation; creating and closing an event for each free took 570 ns and two Go allocations.
//
// The lock comes after the shards' locks, and before the event pool's. Under it events are queried
// and closed, but never waited for.
type pendingFrees struct {
	shards *shards
	events atomic.Int64 // number of events in the queues, which requests check
	mu     sync.Mutex
	// non-empty queues by stream ID, the order in which completions are seen
	queues      []*eventQueue
	lastNumber  uint64        // number of the last event that was pushed
	spare       *pendingEvent // unused records, linked by next
	emptyQueues *eventQueue   // likewise
	closed      bool

	// See deferred.go.
	entered       atomic.Int32 // with Exact, number of entered pools; changed under mu
	deferred      []*handout
	deferredCount atomic.Int32 // length of deferred; changed under mu
}

// eventQueue is the list of events of one stream, the earliest first.
type eventQueue struct {
	stream     uint64
	head, tail *pendingEvent
	next       *eventQueue
}

// record records an event on each stream that uses the freed block h. Recording may wait for a full
// queue, so no lock is held. No other goroutine changes h.uses until its last event is complete and
// recordingDone was called. inFree reports that Free is the caller.
func (p *pendingFrees) record(h *handout, inFree bool) error {
	if len(h.uses) > 0 && p.deferFree(h) {
		return nil
	}
	var errs []error
	for _, stream := range h.uses {
		// Even if a call fails each stream is either queued or counted as complete, so the block is
		// never lost.
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

// recordEvent records an event on s. It returns nil if s has already completed its work: s is
// closed, or no event was available and recordEvent waited for s.
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

// push adds event to the stream's queue; h's work on s is complete when event is. If event is nil
// the work is already complete, and h waits for one event less. If the cache was closed meanwhile
// push closes event, because no later call would.
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

// recordingDone marks that no more events of h will follow, and reports whether all are complete.
// In that case the caller ends the free, because the polls have left it alone. Exactly one of the
// caller and a poll ends it, because both check h under p.mu.
func (p *pendingFrees) recordingDone(h *handout) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	h.recording = false
	h.forgetUses()
	return h.eventsLeft == 0
}

// poll ends the frees of the blocks whose events are complete (process_events), in the order in
// which it finds them complete. It never waits. requested is the stream of the request that polls,
// or nil. No lock is held.
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

// pollOf is poll for the blocks of one private pool; nil: for all blocks.
func (p *pendingFrees) pollOf(pool *placement.Pool) error {
	done, err := p.takeCompleted(pool)
	for done != nil {
		h := done
		done, h.next = h.next, nil
		p.complete(h, false)
	}
	return err
}

// takeCompleted removes the complete events, and returns the blocks that have no events left, in
// order, linked by next. With a pool, events of other blocks stay. After an error the events that
// were not queried stay.
func (p *pendingFrees) takeCompleted(pool *placement.Pool) (done *handout, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Non-empty queues keep their order in place. In each queue the first incomplete event ends the
	// walk, because later ones are incomplete, too.
	last := &done
	kept := p.queues[:0]
	for i, q := range p.queues {
		at := &q.head
		var before *pendingEvent // the event before *at, which stays
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

// ended ends an event that was removed from its queue, and links its block at last if the block has
// no events left. It returns the link for the next block. p.mu is held.
func (p *pendingFrees) ended(e *pendingEvent, last **handout) **handout {
	notNegative("the number of pending events", p.events.Add(-1))
	h := e.handout
	e.handout = nil
	if e.pins == 0 {
		p.keepSpare(e)
	}
	// While Free still records events the block stays, even without events: see recordingDone.
	notNegative("a block's number of events", int64(h.eventsLeft)-1)
	if h.eventsLeft--; h.eventsLeft > 0 || h.recording {
		return last
	}
	*last = h
	return &h.next
}

// complete ends the free of a block whose last event is complete. inFree reports that Free itself
// is the caller. No lock is held, and no other goroutine uses the block.
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

// foreign returns s if it belongs to another device, or nil.
func (p *pendingFrees) foreign(s device.Stream) device.Stream {
	if s.Device() != p.shards.events.Device {
		return s
	}
	return nil
}

// putEvent returns an unused event to the pool. It closes another device's event instead, which
// could not be recorded on this device's streams.
func (p *pendingFrees) putEvent(e device.Event, foreign device.Stream) error {
	if foreign != nil {
		return e.Close()
	}
	return p.shards.events.Put(e)
}

// keepSpare returns e's event to the pool, and keeps e for the next free. p.mu is held.
func (p *pendingFrees) keepSpare(e *pendingEvent) {
	_ = p.putEvent(e.event, e.foreign)
	*e = pendingEvent{next: p.spare}
	p.spare = e
}

// poisonBlock fills a freed block, which no caller owns, in the order of its stream. A later use on
// that stream finds the poison, and a use on another stream without an event is a data race. A
// failed or closed stream runs nothing any more. During a capture the fill becomes a part of the
// graph and runs in each replay. So there only memory of private pools is filled, which belongs to
// the graph: memory that was allocated before the capture and is freed in it may have another owner
// at the replay.
func poisonBlock(h *handout) {
	if h.chunk.Segment().Pool() == nil && captured([]device.Stream{h.shard.stream}) {
		return
	}
	_ = h.shard.stream.Memset(h.chunk.Ptr(), poison, h.chunk.Size())
}
