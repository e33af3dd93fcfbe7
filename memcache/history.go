package memcache

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/cistern-ml/cistern/device"
)

// The history is a ring of the last events under one lock, in place of a log of all: it is for the minute before a failure,
// and its memory is bounded. Off, it costs a hit one load of a pointer.

// Action is what a history entry is about, with PyTorch's names.
type Action string

// The actions. A block that no recorded stream holds back has its free_completed right after its
// free_requested.
const (
	ActionAlloc         Action = "alloc"
	ActionFreeRequested Action = "free_requested"
	ActionFreeCompleted Action = "free_completed"
	ActionSegmentAlloc  Action = "segment_alloc"
	ActionSegmentFree   Action = "segment_free"
	ActionSegmentMap    Action = "segment_map"
	ActionSegmentUnmap  Action = "segment_unmap"
	ActionOOM           Action = "oom"
	ActionSnapshot      Action = "snapshot"
	ActionRelabel       Action = "relabel" // Block.SetLabel; not of PyTorch
)

// HistoryEntry is one event. Sizes are bytes.
type HistoryEntry struct {
	Action  Action
	Address device.Ptr // of the block or segment; 0 for oom and snapshot
	// Size is what was asked for, for blocks; the segment's or range's size, for segments; the rounded
	// request, for oom; the bytes active, for snapshot.
	Size   int64
	Stream uint64
	Serial uint64 // of the block's hand-out; 0 for the others
	Time   time.Time
	Free   int64 // the driver's free bytes, for oom
	Label  Label // of the block, and of the request for oom
	// Stack are the program counters of the call, the innermost first, for runtime.CallersFrames; nil
	// without stacks.
	Stack []uintptr
}

// Stacks says which entries and blocks keep the call stack.
type Stacks uint8

// The levels of stacks; each includes the ones before. They are PyTorch's context levels.
const (
	StacksNone  Stacks = iota
	StacksState        // blocks in use, in a Snapshot
	StacksAlloc        // also the history's alloc and segment entries
	StacksAll          // also its free entries
)

// HistoryOptions are the options of [Cache.RecordHistory].
type HistoryOptions struct {
	// Entries is how many events are kept; older ones are forgotten. 0 ends the recording.
	Entries int
	// Stacks says where call stacks are kept. A stack costs about 1 µs.
	Stacks Stacks
}

// maxHistory is the most entries: some 160 MB of them, on 64 bits.
const maxHistory = 1 << 20

// RecordHistory starts recording what the cache does (torch.cuda.memory._record_memory_history), or ends it,
// and forgets what was recorded before. Off, which is the default, it costs nothing; on, some 100 ns an event.
// The entries of one stream are in the order in which things happened.
func (c *Cache) RecordHistory(o HistoryOptions) error {
	if o.Entries < 0 || o.Entries > maxHistory {
		return fmt.Errorf("memcache: RecordHistory of %d entries: %w: it is between 0 and %d", o.Entries, ErrInvalid, maxHistory)
	}
	if o.Stacks > StacksAll {
		return fmt.Errorf("memcache: RecordHistory with stacks %d: %w: it is one of StacksNone to StacksAll", o.Stacks, ErrInvalid)
	}
	if o.Entries == 0 {
		c.history.Store(nil)
		return nil
	}
	c.history.Store(&history{ring: make([]HistoryEntry, o.Entries), stacks: o.Stacks})
	return nil
}

// History returns the recorded events, the oldest first.
func (c *Cache) History() []HistoryEntry {
	h := c.history.Load()
	if h == nil {
		return nil
	}
	return h.list()
}

// history is a ring of entries. Its lock may be taken under a shard's; nothing is done under it but copying.
type history struct {
	stacks Stacks

	mu   sync.Mutex
	ring []HistoryEntry
	n    int // entries ever added
}

// add enters an event, in place of the oldest one if the ring is full.
func (h *history) add(e HistoryEntry) {
	e.Time = time.Now()
	if h.stacks < StacksAlloc {
		e.Stack = nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ring[h.n%len(h.ring)] = e
	h.n++
}

// list copies the entries, the oldest first.
func (h *history) list() []HistoryEntry {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n <= len(h.ring) {
		return append([]HistoryEntry(nil), h.ring[:h.n]...)
	}
	first := h.n % len(h.ring)
	return append(append([]HistoryEntry(nil), h.ring[first:]...), h.ring[:first]...)
}

// stack is the caller's stack, if the history wants it of such a call. It is taken before any lock, since it takes about
// 1 µs.
func (c *Cache) stack(level Stacks) []uintptr {
	h := c.history.Load()
	if h == nil || h.stacks < level {
		return nil
	}
	pcs := make([]uintptr, 64)
	return pcs[:runtime.Callers(3, pcs)]
}

// recordHistory records what happened to a block. s.mu is held.
func (s *shard) recordHistory(a Action, m *chunk, serial uint64, stack []uintptr) {
	if h := s.cache.history.Load(); h != nil {
		h.add(HistoryEntry{Action: a, Address: m.ptr, Size: m.requested, Stream: s.id, Serial: serial, Label: m.label.value(), Stack: stack})
	}
}

// recordSegment records what happened to memory from the driver.
func (c *Cache) recordSegment(a Action, p device.Ptr, bytes int64, stream uint64, stack []uintptr) {
	if h := c.history.Load(); h != nil {
		h.add(HistoryEntry{Action: a, Address: p, Size: bytes, Stream: stream, Stack: stack})
	}
}
