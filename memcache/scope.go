package memcache

import "sync"

// A scope answers two questions. How much memory did the device need while a part of the program
// ran? That is the window, over the whole cache. Its peaks are exact, as the global ones are, by
// quotas of their own (usage.scopes), which each open scope adds to the cost of every hit. What did
// that part allocate, and what did it leak? Those are its own blocks, which keep the scope of the
// request's context until their free, on any goroutine. ResetPeakStats in the middle of a program
// would also answer the first question, but only for one part at a time, and would destroy the
// global peaks.

// Scope accounts for the memory of a part of a program, such as a training step or a forward pass.
// It reports the Window of the whole cache while the scope is open, and its Own blocks. Scopes may
// nest, overlap and run on several goroutines. No scope affects the peaks of Stats or of another
// scope.
type Scope struct {
	ledger *ledger
	parent *Scope // the enclosing scope, perhaps of another cache
	name   string

	// Guarded by shards.mu, and the exact peaks by all shards' locks as well: see usage.
	window Window
	base   Window   // the counts from New to the scope's start
	peak   peakMark // the peak of window.Allocated

	// ended is the number of the scope's end among those of its cache, 0 while it is open. It
	// changes with all shards locked, so one shard's lock suffices to read it.
	ended uint64

	// mu is shared with the enclosing scopes, which are charged together. It is taken under a
	// shard's lock, and no lock is taken under it.
	mu      *sync.Mutex
	own     Own
	replays []Replays
}

// Level is a number of bytes during a scope.
type Level struct {
	Start   int64 // at the start of the scope
	Current int64 // now, or at the end of the scope
	Peak    int64 // the largest in between
}

// Window is the activity of the whole cache between Scope and End, on any goroutine.
type Window struct {
	Allocated, Requested, Reserved Level

	// GraphBytes is as in Stats, now or at the end of the scope: the free memory of graphs' pools,
	// which Allocated does not contain.
	GraphBytes int64

	Allocations  int64 // blocks allocated
	Frees        int64 // blocks freed
	Hits, Misses int64 // as in Stats
	DriverAllocs int64 // driver allocations that succeeded, as Stats.NumDeviceAlloc
	Retries      int64 // driver allocations retried after a flush, whether or not they succeeded
	OutOfMemory  int64 // requests that failed
}

// Own is about the blocks that were allocated with the scope's context, or that of a scope inside
// it, before End. A block counts until it is freed, on any goroutine and also after End: Live after
// End is what the scope leaked.
type Own struct {
	Live        int64 // bytes of blocks not freed
	Peak        int64 // the largest Live
	Allocations int64 // blocks allocated
}

// open begins a scope's window.
func (l *ledger) open(s *Scope) {
	// A window begins with the present use: it is the first peak, and each shard's quota is its own
	// use.
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

// Name returns the scope's name.
func (s *Scope) Name() string { return s.name }

// Own returns the figures of the scope's own blocks.
func (s *Scope) Own() Own {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own
}

// innermostOf returns the innermost scope of the chain from s outwards that belongs to the ledger's
// cache, or nil. A context carries one chain for all caches.
func (s *Scope) innermostOf(l *ledger) *Scope {
	for s != nil && s.ledger != l {
		s = s.parent
	}
	return s
}
