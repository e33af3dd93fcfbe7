package memcache

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/device"
)

// WaitStream makes work that is queued on stream from now on wait, on the device, for the work that
// is queued on other (torch.cuda.Stream.wait_stream). It ends the frees of stream's blocks that
// waited only for other (Block.RecordStream), so that stream may reuse their memory at once. After
// a wait that bypasses the cache, the memory is free only when the device has completed other's
// work. Both streams must belong to the cache's device. The host waits only where recording an
// event does. Any goroutine may call it.
//
// It returns an error that wraps [device.ErrCapturing] if one of the streams is in a capture,
// [device.ErrClosed] if stream is closed, and [ErrInvalid] if one belongs to another device. After
// an error no free has ended.
func (c *Cache) WaitStream(stream, other device.Stream) error {
	for _, s := range [...]device.Stream{stream, other} {
		if err := checkStream(c.dev, "WaitStream", s); err != nil {
			return err
		}
	}
	if captured([]device.Stream{stream, other}) {
		return fmt.Errorf("memcache: WaitStream of stream %d for stream %d: %w", stream.ID(), other.ID(), device.ErrCapturing)
	}
	if stream.ID() == other.ID() {
		return nil
	}
	s := c.shards.of(stream)
	p := s.pending
	p.mu.Lock()
	// the queued events up to here were recorded before the event that stream waits for
	upTo := p.lastNumber
	p.mu.Unlock()
	e, err := p.recordEvent(other)
	if e != nil {
		err = errors.Join(err, stream.Wait(e), p.putEvent(e, nil))
	}
	if err != nil {
		return fmt.Errorf("memcache: WaitStream of stream %d for stream %d: %w", stream.ID(), other.ID(), err)
	}
	for done := p.takePassed(s, other.ID(), upTo); done != nil; {
		h := done
		done, h.next = h.next, nil
		p.complete(h, false)
	}
	return nil
}

// takePassed removes the shard's pending events on stream numbered ≤ upTo, and returns the blocks
// that have no events left, linked by next.
func (p *pendingFrees) takePassed(s *shard, stream, upTo uint64) (done *handout) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, found := slices.BinarySearchFunc(p.queues, stream, func(q *eventQueue, stream uint64) int { return cmp.Compare(q.stream, stream) })
	if !found {
		return nil
	}
	q, last := p.queues[i], &done
	var before *pendingEvent
	for at := &q.head; *at != nil; {
		e := *at
		if e.number > upTo || e.handout.shard != s {
			at, before = &e.next, e
			continue
		}
		if *at = e.next; e.next == nil {
			q.tail = before
		}
		last = p.ended(e, last)
	}
	if q.head == nil {
		q.next, p.emptyQueues = p.emptyQueues, q
		p.queues = slices.Delete(p.queues, i, i+1)
	}
	return done
}
