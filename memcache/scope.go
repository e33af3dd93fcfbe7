package memcache

import (
	"context"
	"slices"
	"sync"
)

// Two figures for two questions. How much memory did the device need while a part of the program ran? That is the window,
// of the whole cache: its peaks are exact, as the global ones are, by quotas of their own (usage.scopes), which each open
// scope adds to every hit. And what did that part allocate, and leave behind? Those are its own blocks, which carry the
// scope from the request's context to their free, on whatever goroutine that is. ResetPeakStats in the middle of a
// program would answer the first question too, but for one part at a time, and takes the global peaks away from others.

// Scope is a span of a program whose memory is accounted for, such as a training step or a forward pass. It
// reports two things: the Window of the whole cache while the scope is open, and its Own blocks. Scopes
// nest, overlap and run on several goroutines; none touches the peaks of Stats or of another scope.
type Scope struct {
	ledger *ledger
	parent *Scope // the enclosing scope, perhaps of another cache
	name   string

	// Guarded by shards.mu, with all shards locked for the peaks, which are exact: see usage.
	window Window
	base   Window   // what it counts, from New up to the scope's start
	peak   peakMark // of window.Allocated

	// ended is the number of the scope's end among those of its cache, 0 while it is open. It changes with all shards
	// locked: one shard's lock is enough to look.
	ended uint64

	// mu is shared with the scopes around it, which are charged together. It is taken under a shard's lock, and nothing is locked
	// under it.
	mu  *sync.Mutex
	own Own
}

// Level is a number of bytes over a scope.
type Level struct {
	Start   int64 // when the scope began
	Current int64 // now, or when the scope ended
	Peak    int64 // the largest in between
}

// Window is what the whole cache did between Scope and End, on any goroutine.
type Window struct {
	Allocated, Requested, Reserved Level

	Allocations  int64 // blocks handed out
	Frees        int64 // blocks freed
	Hits, Misses int64 // as in Stats
	DriverAllocs int64 // segments asked of the driver
	Retries      int64 // of these, tried again after a flush
	OutOfMemory  int64 // requests that failed
}

// Own are the blocks allocated with the scope's context, or that of a scope inside it, before End. A block
// counts until it is freed, wherever and whenever that is: Live after End is what the scope leaked.
type Own struct {
	Live        int64 // bytes of blocks not freed
	Peak        int64 // the largest Live
	Allocations int64 // blocks handed out
}

// Scope opens a scope inside the one that ctx carries, if any. Allocations with the context that it returns
// are the scope's own. End must be called.
func (c *Cache) Scope(ctx context.Context, name string) (context.Context, *Scope) {
	s := &Scope{ledger: &c.ledger, parent: ctxStateOf(ctx).scope, name: name}
	if s.parent != nil {
		s.mu = s.parent.mu
	} else {
		s.mu = new(sync.Mutex)
	}
	s.ledger.open(s)
	return carry(ctx, func(inside *carrier) { inside.state.scope = s }), s
}

// open begins a scope's window.
func (l *ledger) open(s *Scope) {
	// A window begins with what is in use: that is its first peak, and each shard's quota in it is its own use.
	l.shards.lockAll()
	defer l.shards.unlockAll()
	s.base = l.window()
	begin := func(l, now *Level) { *l = Level{Start: now.Current, Current: now.Current, Peak: now.Current} }
	begin(&s.window.Allocated, &s.base.Allocated)
	begin(&s.window.Requested, &s.base.Requested)
	begin(&s.window.Reserved, &s.base.Reserved)
	l.openScopes = append(l.openScopes, s)
	for _, sh := range l.shards.list() {
		sh.scopes = append(sh.scopes, scopeQuota{allocated: sh.inUse(allPools, gaugeAllocatedBytes), requested: sh.inUse(allPools, gaugeRequestedBytes)})
		sh.lastScope().peak.freed, sh.spare = sh.spare, nil
	}
	l.markPeak(&s.peak, func(sh *shard) *peakLog { return &sh.lastScope().peak })
}

// Name is the scope's name.
func (s *Scope) Name() string { return s.name }

// Window returns the cache's figures since the scope began, up to End.
func (s *Scope) Window() Window {
	s.ledger.shards.lockAll()
	defer s.ledger.shards.unlockAll()
	if s.ended == 0 {
		s.updateWindow()
	}
	return s.window
}

// Own returns the figures of the scope's own blocks.
func (s *Scope) Own() Own {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own
}

// EndWindow is [Scope.End], and returns the window, with who held the cache's memory at its peak if that is above so many
// bytes; else, and of a scope that had ended, the holders are nobody. Who wants to know of the largest part of a program
// asks with the peak of the largest before: all is of one moment.
func (s *Scope) EndWindow(above int64) (w Window, holders Holders) {
	s.ledger.shards.lockAll()
	defer s.ledger.shards.unlockAll()
	if s.ended == 0 && s.window.Allocated.Peak > above {
		holders.notes, holders.mark = s.notes()
	}
	s.endLocked()
	return s.window, holders
}

// End closes the window. Blocks allocated with the scope's context from now on are charged to the enclosing
// scopes that are open. It is idempotent.
func (s *Scope) End() {
	s.ledger.shards.lockAll()
	defer s.ledger.shards.unlockAll()
	s.endLocked()
}

// endLocked is End. All shards are locked.
func (s *Scope) endLocked() {
	if s.ended != 0 {
		return
	}
	l := s.ledger
	s.updateWindow()
	l.scopesEnded++
	s.ended = l.scopesEnded
	// Its quotas go, in every shard, from the same place in the list.
	i := slices.Index(l.openScopes, s)
	l.openScopes = slices.Delete(l.openScopes, i, i+1)
	for _, sh := range l.shards.list() {
		sh.scopes[i].peak.forget()
		sh.spare = sh.scopes[i].peak.freed
		sh.scopes = slices.Delete(sh.scopes, i, i+1)
	}
}

// window has the levels of this moment, and counts from New on. It is what a step needs of sumStats, for a fraction of its
// cost. All shards are locked.
func (l *ledger) window() (w Window) {
	blocks := l.sumGauge(allPools, gaugeAllocatedBlocks)
	w.Allocations, w.Frees = blocks.Allocated, blocks.Freed
	n := l.baseCounts
	for _, s := range l.shards.list() {
		w.Allocated.Current += s.inUse(allPools, gaugeAllocatedBytes)
		w.Requested.Current += s.inUse(allPools, gaugeRequestedBytes)
		n.add(s)
	}
	w.Reserved.Current = l.stats.ReservedBytes.All.Current
	w.Hits, w.Misses = n.hits, n.misses
	w.DriverAllocs, w.Retries, w.OutOfMemory = l.stats.NumDeviceAlloc, l.stats.NumAllocRetries, l.stats.NumOOMs
	if b := l.stats.beforeReset; b != nil {
		w.Allocations += b.Allocation.All.Allocated
		w.Frees += b.Allocation.All.Freed
		w.Hits += b.Hits
		w.Misses += b.Misses
		w.DriverAllocs += b.NumDeviceAlloc
		w.Retries += b.NumAllocRetries
		w.OutOfMemory += b.NumOOMs
	}
	return w
}

// updateWindow brings the window up to date; its peaks always are. All shards are locked.
func (s *Scope) updateWindow() {
	now, base, w := s.ledger.window(), &s.base, &s.window
	w.Allocated.Current, w.Requested.Current, w.Reserved.Current = now.Allocated.Current, now.Requested.Current, now.Reserved.Current
	w.Allocations, w.Frees = now.Allocations-base.Allocations, now.Frees-base.Frees
	w.Hits, w.Misses = now.Hits-base.Hits, now.Misses-base.Misses
	w.DriverAllocs, w.Retries, w.OutOfMemory = now.DriverAllocs-base.DriverAllocs, now.Retries-base.Retries, now.OutOfMemory-base.OutOfMemory
}

// innermostOf is the innermost scope of the chain from s outwards that belongs to the ledger's cache, or nil: a context carries one chain for
// all caches.
func (s *Scope) innermostOf(l *ledger) *Scope {
	for s != nil && s.ledger != l {
		s = s.parent
	}
	return s
}

// charge counts a block in the open scopes of the chain that starts with s, and lets it keep the innermost of them. A scope
// may be charged from several shards at once, so its chain has a lock. Scopes end in any order, so these need not
// follow one another: the block notes how many scopes had ended, and was charged to those of the chain that ended later
// or not at all. The block's shard is locked.
func (h *handout) charge(s *Scope) {
	h.scope, h.scopesEndedBefore = nil, s.ledger.scopesEnded
	size := h.chunk.Size()
	s.mu.Lock()
	defer s.mu.Unlock()
	// From the inside out. An enclosing scope of another cache is passed over: it is charged by its own blocks.
	for ; s != nil; s = s.parent.innermostOf(s.ledger) {
		if s.ended != 0 {
			continue
		}
		if h.scope == nil {
			h.scope = s
		}
		s.own.Live += size
		s.own.Peak = max(s.own.Peak, s.own.Live)
		s.own.Allocations++
	}
}

// discharge takes a block out of the scopes that it was charged to. The block's shard is locked.
func (h *handout) discharge() {
	s := h.scope
	h.scope = nil
	size := h.chunk.Size()
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; s != nil; s = s.parent.innermostOf(s.ledger) {
		if s.ended != 0 && s.ended <= h.scopesEndedBefore {
			continue
		}
		s.own.Live -= size
		notNegative("a scope's live bytes", s.own.Live)
	}
}
