package memcache

import (
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// The path of a free: endHandOut takes the block from the caller (free_requested in PyTorch's
// history). Without recorded streams the chunk becomes free at once (completeFree, free_completed).
// With recorded streams it is pending: pendingFrees.record records an event on each stream, and the
// poll that finds the last event complete ends the free (pendingFrees.complete). The statistics
// count a pending block as active.

// RecordStream records that work queued on s uses the block (Tensor.record_stream). After its free
// the block is reused only when everything that was queued on s before the free is complete. Call
// it before Free. Recording the block's own stream, a stream twice, or a closed stream does
// nothing. s may be a stream of another device that can access this device's memory
// ([device.Properties].Peers). [Block.EraseStream] undoes it.
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
	// Under the shard's lock only methods of a stream are called that don't block: its ID and
	// whether it is closed.
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
	// Only a few streams use a block, so a linear search is faster than a set.
	known := slices.ContainsFunc(b.handout.uses, func(u device.Stream) bool { return u.ID() == id })
	if owner.pending.entered.Load() > 0 {
		b.handout.inside = append(b.handout.inside, id)
	}
	if !known {
		b.handout.uses = append(b.handout.uses, s)
	}
	return nil
}

// EraseStream undoes RecordStream, so that a free of the block does not wait for s. Before the call
// the block's stream must wait, on the device, for all work of s that uses the block, for example
// for an event that was recorded on s after that work ([device.Stream.Wait]). Without such a wait
// the block may be reused while s still uses it. Erasing a stream that is not recorded, or the
// block's own stream, changes nothing and is not an error. On a freed block it returns an error
// that wraps [ErrFreed]. It does not block, and may be called from any goroutine.
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
		// a lent block waits for the stream that it is lent to, and that one stays recorded
		return nil
	}
	b.handout.uses = slices.DeleteFunc(b.handout.uses, func(u device.Stream) bool { return u.ID() == id })
	b.handout.inside = slices.DeleteFunc(b.handout.inside, func(u uint64) bool { return u == id })
	return nil
}

// Free frees the block. The memory is reusable on its own stream at once or, after RecordStream,
// when every recorded stream has completed the work that was queued before Free. A second Free is
// an error.
//
// Free blocks only where recording an event does: while a recorded stream's queue is full, or the
// stream is being closed. With NoCaching it waits for the recorded streams and for the driver, with
// MaxCachedBytes it may call the driver, and with a [HistoryStream] it waits for a reader that has
// fallen behind.
func (b Block) Free() error { return b.FreeContext(context.Background()) }

// FreeContext is Free with a context. ctx is the parent of the observer's contexts, and ends the
// wait for the reader of a [HistoryStream]; the block is freed all the same.
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

// freeRecord is the outcome of a free for the observer.
type freeRecord struct {
	shard, sequence uint64
	requested       int64
	kind            placement.Kind
	stack           []uintptr // with the history's stacks
	label           *Label
	// history is the stream on which the free has begun a call.
	history *HistoryStream
}

// free frees the block, and records in was what it was. The memory becomes free at once, or after
// the recorded streams. ctx ends only the wait for the reader of a streamed history. No lock is
// held.
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

// endHandOut takes the block from the caller. If streams are recorded it returns them, and the
// block is pending. Unless all shards are locked it does nothing and returns fits false if a quota
// does not allow the change: merging may increase the inactive bytes. s.mu is held.
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
	// Where freed memory is poisoned every free is pending, so that the bytes are overwritten
	// without a lock before the chunk can be reused.
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
		// a graph uses the block, even if it was allocated outside of the capture
		p.Captured.Store(true)
	}
	s.recordFree(h, was.stack, !waits)
	s.makePending(h)
	countPool(m, &d)
	s.publish()
	if waits {
		// recording keeps a poll that sees the first event complete from ending the free while the
		// others are recorded.
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
