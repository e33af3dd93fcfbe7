package memcache

import (
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// The way of a free: endHandOut takes the block from the caller, with PyTorch's history's word free_requested. Without
// recorded streams the chunk becomes free in the same breath (completeFree, free_completed). With some it is pending:
// pendingFrees.record records an event on each stream, and the poll that sees the last one complete ends
// the free (pendingFrees.complete). A block that is pending is still active in the statistics.

// RecordStream tells the cache that work queued on s uses the block (Tensor.record_stream). When the block
// is freed it is reused only after everything queued on s up to the free is done. Recording the block's own
// stream, a stream twice, or a closed stream does nothing. s may be a stream of another device that reaches this one's
// memory ([device.Properties].Peers). Call it before Free. [Block.EraseStream] takes it back.
func (b Block) RecordStream(s device.Stream) error {
	if b.IsZero() {
		return nil
	}
	if err := checkUser(b.handout.shard.cache.dev, "RecordStream", s); err != nil {
		return err
	}
	if invariants.Enabled {
		defer b.handout.shard.cache.verify()
	}
	// What is asked of a stream under the shard's lock, its ID and whether it is closed, waits for nothing.
	id := s.ID()
	owner := b.handout.shard
	owner.mu.Lock()
	defer owner.mu.Unlock()
	if err := owner.checkLive(&b); err != nil {
		return fmt.Errorf("memcache: RecordStream of %s: %w", b, err)
	}
	if id == b.stream || s.Closed() {
		return nil
	}
	// A block is used by a handful of streams: a walk is quicker than a set.
	known := slices.ContainsFunc(b.handout.uses, func(u device.Stream) bool { return u.ID() == id })
	if owner.pending.entered.Load() > 0 {
		b.handout.inside = append(b.handout.inside, id)
	}
	if !known {
		b.handout.uses = append(b.handout.uses, s)
	}
	return nil
}

// EraseStream takes a RecordStream back: the block's stream waits, on the device, for all that s
// has done with the block, such as by an event that was recorded on s after it
// ([device.Stream.Wait]), so that a free of the block need not. Without such a wait the block is
// reused under what s does. A stream that is not recorded, or that is the block's own, is not an
// error and changes nothing; a block that was freed is one that wraps [ErrFreed]. It waits for
// nothing, and may be called from any goroutine.
func (b Block) EraseStream(s device.Stream) error {
	if b.IsZero() {
		return nil
	}
	if err := checkUser(b.handout.shard.cache.dev, "EraseStream", s); err != nil {
		return err
	}
	id := s.ID()
	owner := b.handout.shard
	owner.mu.Lock()
	defer owner.mu.Unlock()
	if err := owner.checkLive(&b); err != nil {
		return fmt.Errorf("memcache: EraseStream of %s: %w", b, err)
	}
	if id == b.stream {
		return nil // a block that is lent waits for its stream, whoever else waits
	}
	b.handout.uses = slices.DeleteFunc(b.handout.uses, func(u device.Stream) bool { return u.ID() == id })
	b.handout.inside = slices.DeleteFunc(b.handout.inside, func(u uint64) bool { return u == id })
	return nil
}

// Free gives the block back. For the host it is free at once; its memory is handed out again to its own
// stream at once, and after RecordStream when every recorded stream is past the work queued before Free.
// A second Free is an error.
//
// Free waits only where recording an event does: when a recorded stream's queue is full, or it is being
// closed. With NoCaching it waits for the recorded streams and for the driver, with MaxCachedBytes it
// may call the driver, and beside a [HistoryStream] for a reader that is behind.
func (b Block) Free() error { return b.FreeContext(context.Background()) }

// FreeContext is Free; ctx is the parent of what observers see, and ends the wait for the reader of a [HistoryStream]: the
// block is freed all the same.
func (b Block) FreeContext(ctx context.Context) error {
	if b.handout == nil {
		return nil
	}
	if ctx == nil {
		ctx = context.Background()
	}
	c := b.handout.shard.cache
	var was freeRecord
	if c.reporter.observer == nil {
		err := b.free(ctx, &was)
		was.history.leave()
		c.settle(ctx)
		return err
	}
	inside, op := c.reporter.start(ctx, OpFree)
	err := b.free(ctx, &was)
	was.history.leave()
	c.settle(inside)
	if op == nil {
		return err
	}
	info := OpInfo{Op: OpFree, Stream: b.stream, Serial: b.serial, Bytes: b.size, Err: err}
	if was.sequence > 0 {
		info.Shard, info.Seq, info.Requested, info.Pool, info.Label = was.shard, was.sequence, was.requested, was.kind.String(), was.label.value()
	}
	c.reporter.end(op, info)
	return err
}

// freeRecord is what a free leaves for the observer.
type freeRecord struct {
	shard, sequence uint64
	requested       int64
	kind            placement.Kind
	stack           []uintptr // with the history's stacks
	label           *Label
	history         *HistoryStream // that the free told of its beginning
}

// free ends the block's hand-out, and says in was what it was. Its memory is free at once, or after the recorded streams. ctx ends
// the wait for the reader of a streamed history, and nothing else. No lock is held.
func (b *Block) free(ctx context.Context, was *freeRecord) error {
	s := b.handout.shard
	c := s.cache
	if invariants.Enabled {
		defer c.verify()
	}
	if h := c.shards.history.Load(); h != nil {
		was.stack = h.stack(StacksAll)
		_ = h.stream.admit(ctx, 0)
		h.stream.begin()
		was.history = h.stream
	}
	if c.shards.noCaching {
		err := c.grower.freeUncached(*b, was)
		c.grower.waits.freed()
		return err
	}
	s.mu.Lock()
	uses, fits, err := s.endHandOut(b, was, false)
	s.mu.Unlock()
	if !fits {
		c.shards.lockAll()
		uses, _, err = s.endHandOut(b, was, true)
		c.shards.unlockAll()
	}
	if err != nil {
		return fmt.Errorf("memcache: Free of %s: %w", *b, err)
	}
	if len(uses) > 0 || c.shards.poisons() {
		err = s.pending.record(b.handout, true)
	}
	c.grower.waits.freed()
	return err
}

// endHandOut takes the block from the caller. If streams are recorded it returns them, and the block is pending. Unless all
// shards are locked it does nothing if a quota is in the way, and says so: what merges may be a larger inactive part than
// there was. s.mu is held.
func (s *shard) endHandOut(b *Block, was *freeRecord, allLocked bool) (uses []device.Stream, fits bool, err error) {
	if err := s.checkLive(b); err != nil {
		return nil, true, err
	}
	h := b.handout
	m := b.chunk
	kind := m.Kind()
	d := delta{gaugeAllocatedBlocks: -1, gaugeAllocatedBytes: -m.Size()}
	if m.Size() >= s.shards.rules().MaxSplit {
		d[gaugeOversizeBlocks] = -1
	}
	// Where freed memory is poisoned every free is pending: the bytes are overwritten before the chunk can be handed out,
	// and not under a lock.
	waits := len(h.uses) > 0 || s.shards.poisons()
	if !waits {
		freeDelta(m, &d)
	}
	if !s.tryEnd(kind, &d) && !s.addBeyond(nil, kind, &d, allLocked) {
		return nil, false, nil
	}
	s.sequence++
	was.shard, was.sequence, was.requested, was.kind, was.label = s.id, s.sequence, m.Requested, kind, h.label
	if p := m.Segment().Pool(); p != nil && !p.Captured.Load() && (captured([]device.Stream{s.stream}) || captured(h.uses)) {
		p.Captured.Store(true) // a graph uses the block, wherever it was allocated
	}
	s.recordFree(h, was.stack, !waits)
	s.makePending(h)
	countPool(m, &d)
	s.publish()
	if waits {
		// recording keeps a poll that sees the first event complete from ending the free while the others are recorded.
		h.recording, h.eventsLeft = true, int32(len(h.uses))
		return h.uses, true, nil
	}
	s.completeFree(h)
	return nil, true, nil
}

// makePending takes a block from its caller, for this moment or longer. s.mu is held.
func (s *shard) makePending(h *handout) {
	s.noteFree(h)
	h.stack, h.task, h.lastSerial, h.serial, h.pending = nil, nil, h.serial, 0, true
	if h.scope != nil {
		h.discharge()
	}
}

// checkUser is checkStream of a stream whose work may use the device's memory.
func checkUser(dev device.Device, op string, s device.Stream) error {
	// Devices of one backend that reach each other's memory may use each other's blocks.
	if s != nil && s.Device() != dev {
		mine, other := dev.Properties(), s.Device().Properties()
		if mine.Peers && other.Peers && mine.Backend == other.Backend {
			return nil
		}
	}
	return checkStream(dev, op, s)
}
