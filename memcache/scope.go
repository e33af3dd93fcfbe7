package memcache

import "sync"

// Two figures for two questions. How much memory did the device need while a part of the program
// ran? That is the window, of the whole cache: its peaks are exact, as the global ones are, by
// quotas of their own (usage.scopes), which each open scope adds to every hit. And what did that
// part allocate, and leave behind? Those are its own blocks, which carry the scope from the
// request's context to their free, on whatever goroutine that is. ResetPeakStats in the middle of a
// program would answer the first question too, for one part at a time, and takes the global peaks
// away from others.

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
	mu      *sync.Mutex
	own     Own
	replays []Replays
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

	GraphBytes int64 // as in Stats, now or when the scope ended: the free memory of graphs' pools, which Allocated has no part of

	Allocations  int64 // blocks handed out
	Frees        int64 // blocks freed
	Hits, Misses int64 // as in Stats
	DriverAllocs int64 // driver allocations that succeeded, as Stats.NumDeviceAlloc
	Retries      int64 // driver allocations repeated after a flush, also those that failed again
	OutOfMemory  int64 // requests that failed
}

// Own are the blocks allocated with the scope's context, or that of a scope inside it, before End. A block
// counts until it is freed, wherever and whenever that is: Live after End is what the scope leaked.
type Own struct {
	Live        int64 // bytes of blocks not freed
	Peak        int64 // the largest Live
	Allocations int64 // blocks handed out
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
	l.markPeak(&s.peak, nil, &delta{}, func(sh *shard) *peakLog { return &sh.lastScope().peak })
}

// Name is the scope's name.
func (s *Scope) Name() string { return s.name }

// Own returns the figures of the scope's own blocks.
func (s *Scope) Own() Own {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own
}

// innermostOf is the innermost scope of the chain from s outwards that belongs to the ledger's cache, or nil: a context carries one chain for
// all caches.
func (s *Scope) innermostOf(l *ledger) *Scope {
	for s != nil && s.ledger != l {
		s = s.parent
	}
	return s
}
