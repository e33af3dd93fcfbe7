package memcache

import (
	"context"
	"slices"
	"sync"
)

// Scope opens a scope inside the one that ctx carries, if any. Allocations with the returned
// context are the scope's own. The caller must call End.
func (c *Cache) Scope(ctx context.Context, name string) (context.Context, *Scope) {
	x := &struct { // one Go allocation
		scope  Scope
		inside carrier
		mu     sync.Mutex
	}{scope: Scope{ledger: &c.ledger, parent: ctxStateOf(ctx).scope, name: name}}
	s := &x.scope
	if s.parent != nil {
		s.mu = s.parent.mu
	} else {
		s.mu = &x.mu
	}
	s.ledger.open(s)
	if ctx == nil {
		return nil, s
	}
	x.inside.onto(ctx)
	x.inside.state.scope = s
	return &x.inside, s
}

// Window returns the cache's figures since the scope began, at most up to End.
func (s *Scope) Window() Window {
	s.ledger.shards.lockAll()
	defer s.ledger.shards.unlockAll()
	if s.ended == 0 {
		s.updateWindow()
	}
	return s.window
}

// EndWindow is [Scope.End], and returns the window. If the window's peak is more than above bytes
// it also returns the owners of the cache's memory at that peak; otherwise, and if the scope had
// already ended, holders is empty. To find the largest part of a program, pass the largest peak so
// far. Everything is from one moment.
func (s *Scope) EndWindow(above int64) (w Window, holders Holders) {
	s.ledger.shards.lockAll()
	defer s.ledger.shards.unlockAll()
	if s.ended == 0 && s.window.Allocated.Peak > above {
		holders.notes, holders.mark = s.notes()
	}
	s.endLocked()
	return s.window, holders
}

// End closes the window. Blocks allocated with the scope's context from now on are charged to the
// enclosing scopes that are open. It is idempotent.
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
	// Remove its quotas, which are at the same index in every shard.
	i := slices.Index(l.openScopes, s)
	l.openScopes = slices.Delete(l.openScopes, i, i+1)
	for _, sh := range l.shards.list() {
		sh.scopes[i].peak.forget()
		sh.spare = sh.scopes[i].peak.freed
		sh.scopes = slices.Delete(sh.scopes, i, i+1)
	}
}

// updateWindow brings the window up to date, except its peaks, which always are. All shards are
// locked.
func (s *Scope) updateWindow() {
	now, base, w := s.ledger.window(), &s.base, &s.window
	w.Allocated.Current, w.Requested.Current, w.Reserved.Current = now.Allocated.Current, now.Requested.Current, now.Reserved.Current
	w.GraphBytes = now.GraphBytes
	w.Allocations, w.Frees = now.Allocations-base.Allocations, now.Frees-base.Frees
	w.Hits, w.Misses = now.Hits-base.Hits, now.Misses-base.Misses
	w.DriverAllocs, w.Retries, w.OutOfMemory = now.DriverAllocs-base.DriverAllocs, now.Retries-base.Retries, now.OutOfMemory-base.OutOfMemory
}

// PeakProfile returns the owners of the cache's memory at the peak of the scope's window, as
// [Cache.PeakProfile] does. Call it before End: for an ended scope it returns the zero Profile.
func (s *Scope) PeakProfile() Profile {
	s.ledger.shards.lockAll()
	notes, mark := s.notes()
	s.ledger.shards.unlockAll()
	return newProfile(notes, mark)
}

// EndProfile is [Scope.End], and returns the owners of the cache's memory at the peak of the
// window, which no other goroutine raises in between. For a scope that had already ended it returns
// the zero Profile.
func (s *Scope) EndProfile() Profile {
	s.ledger.shards.lockAll()
	notes, mark := s.notes()
	s.endLocked()
	s.ledger.shards.unlockAll()
	return newProfile(notes, mark)
}

// notes returns the notes of the window's peak. All shards are locked.
func (s *Scope) notes() (notes []freedBlock, mark peakMark) {
	i := slices.Index(s.ledger.openScopes, s)
	if i < 0 {
		return nil, mark
	}
	return s.ledger.notesOfPeak(func(s *shard) *peakLog { return &s.scopes[i].peak }), s.peak
}
