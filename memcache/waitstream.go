package memcache

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/device"
)

// WaitStream makes what is queued on stream from now on wait, on the device, for what other has queued (torch.cuda.Stream.wait_stream), and tells the
// cache: the frees of the stream's blocks that waited for no other stream but that one (Block.RecordStream) have ended, and their memory may be handed out to
// the stream at once. After a wait that the cache does not know of it is free only when the device is that far. Both streams are of the cache's device. The
// host waits only where recording an event does. Any goroutine may call it. A stream that is captured is an error that wraps [device.ErrCapturing], one that
// is closed and is to wait [device.ErrClosed], one of another device [ErrInvalid]; after an error no free has ended.
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
	upTo := p.lastNumber // what is in the queues was recorded before the event that stream waits for
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

// takePassed takes out the events that were recorded on a stream for blocks of the shard, up to that number, and returns the blocks whose last one that
// was, linked by next.
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
