package memcache

import (
	"context"
	"fmt"
	"time"
)

// maxHistory is the maximum number of entries, which take some 190 MB on 64-bit systems.
const maxHistory = 1 << 20

// RecordHistory starts or stops recording the cache's operations
// (torch.cuda.memory._record_memory_history), and drops the earlier entries. Off, which is the
// default, it costs nothing; on, it costs some 100 ns an event. The entries of each stream are in
// the order of its operations.
func (c *Cache) RecordHistory(o HistoryOptions) error {
	if o.Entries < 0 || o.Entries > maxHistory {
		return fmt.Errorf("memcache: RecordHistory of %d entries: %w: want 0 to %d", o.Entries, ErrInvalid, maxHistory)
	}
	if o.Stacks > StacksAll {
		return fmt.Errorf("memcache: RecordHistory with stacks %d: %w: want one of StacksNone to StacksAll", o.Stacks, ErrInvalid)
	}
	c.shards.mu.Lock()
	defer c.shards.mu.Unlock()
	var ring *historyRing
	if o.Entries > 0 {
		// one more, which is overwritten while the others are copied
		ring = &historyRing{list: make([]HistoryEntry, o.Entries+1)}
		ring.stacks.Store(uint32(o.Stacks))
	}
	c.shards.history.set(ring, c.shards.history.stream())
	return nil
}

// SetHistoryStacks changes which entries keep call stacks from now on, for the history of
// RecordHistory and for a stream, which both continue. It is meant for the steps to examine
// closely. If neither is on it returns an error that wraps [ErrInvalid].
func (c *Cache) SetHistoryStacks(level Stacks) error {
	if level > StacksAll {
		return fmt.Errorf("memcache: SetHistoryStacks(%d): %w: want one of StacksNone to StacksAll", level, ErrInvalid)
	}
	c.shards.mu.Lock()
	defer c.shards.mu.Unlock()
	ring, stream := c.shards.history.ring(), c.shards.history.stream()
	if ring == nil && stream == nil {
		return fmt.Errorf("memcache: SetHistoryStacks: %w: the history is off: call RecordHistory before", ErrInvalid)
	}
	if ring != nil {
		ring.stacks.Store(uint32(level))
	}
	if stream != nil {
		stream.stacks.Store(uint32(level))
	}
	c.shards.history.set(ring, stream)
	return nil
}

// History returns the recorded events, the oldest first.
func (c *Cache) History() []HistoryEntry {
	h := c.shards.history.Load()
	if h == nil || h.ring == nil {
		return nil
	}
	return h.ring.entries()
}

// StreamHistory starts a stream of everything that the cache does from now on, with the call stacks
// that o.Stacks selects; o.Entries is not used. It waits for a request that is calling the driver.
// The caller reads the stream with Next, on a goroutine that does not otherwise use the cache
// meanwhile, and ends it with Close; Close of the cache ends it too. A cache has one stream at a
// time, beside the ring of RecordHistory. It costs some 50 ns an event. Calls that add events wait
// while the reader is more than some 30,000 events behind: requests and frees, unless their
// contexts end, changes of labels and limits, and resets of statistics.
func (c *Cache) StreamHistory(o HistoryOptions) (*HistoryStream, error) {
	if o.Stacks > StacksAll {
		return nil, fmt.Errorf("memcache: StreamHistory with stacks %d: %w: want one of StacksNone to StacksAll", o.Stacks, ErrInvalid)
	}
	s := &HistoryStream{ledger: &c.ledger, filling: make([]historyEvent, 0, historyPiece), ready: make(chan struct{}, 1)}
	s.stacks.Store(uint32(o.Stacks))
	// A request that is calling the driver has already had its miss, so its later entries would
	// lack it.
	if err := c.grower.lock(context.Background()); err != nil {
		return nil, err
	}
	defer c.grower.unlock()
	c.shards.lockAll()
	defer c.shards.unlockAll()
	switch {
	case c.shards.closed:
		return nil, fmt.Errorf("memcache: StreamHistory: %w", ErrClosed)
	case c.shards.history.stream() != nil:
		return nil, fmt.Errorf("memcache: StreamHistory: %w: the history has a stream already; close that first", ErrInvalid)
	}
	s.first = c.ledger.historyState()
	c.shards.history.set(c.shards.history.ring(), s)
	return s, nil
}

// Close ends the stream: Next returns the events so far, and then io.EOF. It wakes requests that
// wait for the reader. Close is idempotent, and may be called from any goroutine.
func (s *HistoryStream) Close() {
	s.ledger.shards.lockAll()
	defer s.ledger.shards.unlockAll()
	s.end()
}

// end ends the stream. All shards are locked.
func (s *HistoryStream) end() {
	if s.ledger.shards.history.stream() != s {
		return
	}
	s.last = s.ledger.historyState()
	s.ledger.shards.history.set(s.ledger.shards.history.ring(), nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.release()
	s.wake()
}

// historyState returns the present state. All shards are locked.
func (l *ledger) historyState() HistoryState {
	return HistoryState{Time: time.Now(), Stats: l.sinceReset(), Limit: l.limitBytes(), Options: l.shards.config().Options(), Segments: l.shards.copySegments()}
}
