package memcache

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/device"
)

// The history is a ring of the last events under one lock: it is for the minute before a failure, and its memory is
// bounded. A log of all goes to who reads it as fast as it is made (historystream.go). Off, both cost a hit one load of a
// pointer.

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

// What a [HistoryStream] has beside these: with them the calls can be made again, with the same outcome.
const (
	ActionMiss         Action = "miss"          // no free block serves a request: it goes on with the growth lock
	ActionFlush        Action = "flush"         // pending frees are waited for, then free memory goes back to the driver
	ActionReserve      Action = "reserve"       // addresses for an expandable segment; Address is 0 if there were none
	ActionRefused      Action = "refused"       // the driver has no memory for a request
	ActionFailed       Action = "failed"        // the end of a request after its miss for another reason than memory, or of an EmptyCache
	ActionEmptyCache   Action = "empty_cache"   // the end of EmptyCache, which began with a flush
	ActionStreamClosed Action = "stream_closed" // free segments of a closed stream go to another
	ActionResetPeaks   Action = "reset_peaks"   // ResetPeakStats
	ActionResetTotals  Action = "reset_totals"  // ResetAccumulatedStats
	ActionSetLimit     Action = "set_limit"     // SetMemoryFraction; Size is the limit in bytes, -1: none
	ActionOverlap      Action = "overlap"       // the first time that a call begins while another one is under way; noted by each that begins before it is written
	ActionNote         Action = "note"          // HistoryStream.Note; Serial is its number
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

	// Block is the block's bytes, for alloc.
	Block int64
	// Grew says of an alloc that no free block served it at first. AtOnce says of a free_requested that no recorded stream
	// holds the block back: its free_completed follows, and a [HistoryStream] leaves that one out. Of a free_completed it says
	// that it was the call of Free that saw the streams done, not a later request.
	Grew, AtOnce bool
	// Pool is the private pool of an alloc, and of a flush and an empty_cache that were of one; zero: the default pool.
	Pool PoolID
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
	// Stacks says where call stacks are kept. A stack that was seen before costs some 0.2 µs on amd64, 0.1 µs a frame elsewhere.
	Stacks Stacks
}

// maxHistory is the most entries: some 190 MB of them, on 64 bits.
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
	c.shards.mu.Lock()
	defer c.shards.mu.Unlock()
	var ring *historyRing
	if o.Entries > 0 {
		ring = &historyRing{list: make([]HistoryEntry, o.Entries+1)} // one more, for what is added while the others are copied
		ring.stacks.Store(uint32(o.Stacks))
	}
	c.shards.history.set(ring, c.shards.history.stream())
	return nil
}

// SetHistoryStacks changes from here on where call stacks are kept, of the history of RecordHistory and of a stream, which go
// on: for the steps that one wants to look at closely. Without either it is an error.
func (c *Cache) SetHistoryStacks(level Stacks) error {
	if level > StacksAll {
		return fmt.Errorf("memcache: SetHistoryStacks(%d): %w: it is one of StacksNone to StacksAll", level, ErrInvalid)
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

// historyLog is where a cache's events go, or nowhere: then an event costs the look at one pointer. Its methods may be called with
// any lock.
type historyLog struct{ atomic.Pointer[history] }

// set makes the history what it is from here on. shards.mu is held.
func (l *historyLog) set(ring *historyRing, stream *HistoryStream) {
	h := &history{ring: ring, stream: stream}
	if ring != nil {
		h.stacks = Stacks(ring.stacks.Load())
	}
	if stream != nil {
		h.stacks = max(h.stacks, Stacks(stream.stacks.Load()))
	}
	if ring == nil && stream == nil {
		h = nil
	}
	l.Store(h)
}

// History returns the recorded events, the oldest first.
func (c *Cache) History() []HistoryEntry {
	h := c.shards.history.Load()
	if h == nil || h.ring == nil {
		return nil
	}
	return h.ring.entries()
}

// history is where events go. It is never changed, but replaced: an event looks at one pointer.
type history struct {
	stacks Stacks
	ring   *historyRing   // or nil
	stream *HistoryStream // or nil
}

// add enters an event, with the stack of the call as deep as its receivers want it.
func (h *history) add(e *HistoryEntry) {
	e.Time = time.Now()
	if h.stream != nil {
		h.stream.add(e)
	}
	if h.ring != nil {
		h.ring.add(e)
	}
}

// mark enters an event that only a stream has.
func (l *historyLog) mark(a Action, stream uint64, size int64) { l.markAt(a, stream, 0, size) }

// markAt is mark of an event that has an address.
func (l *historyLog) markAt(a Action, stream uint64, p device.Ptr, size int64) {
	if h := l.Load(); h != nil && h.stream != nil {
		h.stream.add(&HistoryEntry{Action: a, Stream: stream, Address: p, Size: size, Time: time.Now()})
	}
}

// markPool is mark of what is done to a private pool alone; nil: the default pool and the released ones.
func (l *historyLog) markPool(a Action, p *Pool) {
	if h := l.Load(); h != nil && h.stream != nil {
		h.stream.add(&HistoryEntry{Action: a, Pool: p.ID(), Time: time.Now()})
	}
}

// keepsStack reports whether the stack of an entry is wanted at a level.
func (level Stacks) keepsStack(a Action) bool {
	if a == ActionFreeRequested || a == ActionFreeCompleted {
		return level >= StacksAll
	}
	return level >= StacksAlloc
}

// historyRing is a ring of entries. Its lock may be taken under a shard's; nothing is done under it but copying.
type historyRing struct {
	stacks atomic.Uint32 // Stacks

	sites callSites

	mu   sync.Mutex
	list []HistoryEntry
	n    int // entries ever added

	between func() // of a test: called between pieces of a copy
}

// copyPiece is how many entries are copied under the ring's lock at a time: some 10 µs.
const copyPiece = 256

// add enters an event, in place of the oldest one if the ring is full.
func (r *historyRing) add(e *HistoryEntry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := &r.list[r.n%len(r.list)]
	*at = *e
	if !Stacks(r.stacks.Load()).keepsStack(e.Action) {
		at.Stack = nil
	}
	r.n++
}

// entries copies the entries, the oldest first.
func (r *historyRing) entries() []HistoryEntry { return r.before(r.added()) }

// added is how many entries were ever added.
func (r *historyRing) added() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n
}

// before copies the entries before the end-th, the oldest first. Others are added meanwhile: what they take the place of is
// left out, so that there may be fewer than the ring holds.
func (r *historyRing) before(end int) []HistoryEntry {
	first := max(0, end-(len(r.list)-1))
	list := make([]HistoryEntry, end-first)
	from := first
	for at := first; at < end; {
		r.mu.Lock()
		if oldest := r.n - len(r.list); at < oldest {
			at = min(oldest, end)
			from = at // what was copied before that is not connected with what is left
		}
		place := at % len(r.list)
		n := copy(list[at-first:min(at-first+copyPiece, len(list))], r.list[place:])
		r.mu.Unlock()
		at += n
		if r.between != nil {
			r.between()
		}
	}
	return list[from-first:]
}

// stack is the caller's stack, if the history wants it of such a call. It is taken before any lock, since a new one takes
// microseconds.
func (h *history) stack(level Stacks) []uintptr {
	if h.stacks < level {
		return nil
	}
	if h.stream != nil {
		return h.stream.sites.caller()
	}
	return h.ring.sites.caller()
}

// recordAlloc records a hand-out. s.mu is held.
func (s *shard) recordAlloc(h *handout, r *request) {
	if to := s.shards.history.Load(); to != nil {
		e := s.entry(ActionAlloc, h)
		e.Serial, e.Stack, e.Block, e.Grew, e.Pool = h.serial, r.stack, h.chunk.Size(), r.growing, r.pool.ID()
		to.add(&e)
	}
}

// recordFree records the end of a hand-out; at once, it is completed in the same breath. s.mu is held.
func (s *shard) recordFree(h *handout, stack []uintptr, atOnce bool) {
	to := s.shards.history.Load()
	if to == nil {
		return
	}
	e := s.entry(ActionFreeRequested, h)
	e.Serial, e.Stack, e.AtOnce = h.serial, stack, atOnce
	to.add(&e)
	if atOnce && to.ring != nil {
		e.Action, e.Stack, e.AtOnce = ActionFreeCompleted, nil, false
		to.ring.add(&e)
	}
}

// recordBlock records what else happened to a block, by the serial of its hand-out. s.mu is held.
func (s *shard) recordBlock(a Action, h *handout, serial uint64, atOnce bool) {
	if to := s.shards.history.Load(); to != nil {
		e := s.entry(a, h)
		e.Serial, e.AtOnce = serial, atOnce
		to.add(&e)
	}
}

// entry has what entries of a block have in common. s.mu is held.
func (s *shard) entry(a Action, h *handout) HistoryEntry {
	return HistoryEntry{Action: a, Address: h.chunk.Ptr(), Size: h.chunk.Requested, Stream: s.id, Label: h.label.value()}
}

// segment records what happened to memory from the driver.
func (l *historyLog) segment(a Action, p device.Ptr, bytes int64, stream uint64, stack []uintptr) {
	if h := l.Load(); h != nil {
		h.add(&HistoryEntry{Action: a, Address: p, Size: bytes, Stream: stream, Stack: stack})
	}
}
