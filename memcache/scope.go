package memcache

import "context"

// Scope is a span of a program whose memory is accounted for, such as a training step or a forward pass. It
// reports two things: the Window of the whole cache while the scope is open, and its Own blocks. Scopes
// nest, overlap and run on several goroutines; none touches the peaks of Stats or of another scope.
type Scope struct {
	cache  *Cache
	parent *Scope // the enclosing scope, perhaps of another cache
	name   string

	// Guarded by cache.mu.
	ended  bool
	own    Own
	window Window
	base   Stats
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
	Hits, Misses int64 // as in Stats
	DriverAllocs int64 // segments asked of the driver
}

// Own are the blocks allocated with the scope's context, or that of a scope inside it, before End. A block
// counts until it is freed, wherever and whenever that is: Live after End is what the scope leaked.
type Own struct {
	Live        int64 // bytes of blocks not freed
	Peak        int64 // the largest Live
	Allocations int64 // blocks handed out
}

type scopeKey struct{}

// Scope opens a scope inside the one that ctx carries, if any. Allocations with the context that it returns
// are the scope's own. End must be called.
func (c *Cache) Scope(ctx context.Context, name string) (context.Context, *Scope) {
	parent, _ := ctx.Value(scopeKey{}).(*Scope)
	s := &Scope{cache: c, parent: parent, name: name}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.base = c.stats
	for _, l := range s.levels() {
		v := l.of(&c.stats)
		*l.level = Level{Start: v, Current: v, Peak: v}
	}
	c.windows = append(c.windows, s)
	return context.WithValue(ctx, scopeKey{}, s), s
}

// Name is the scope's name.
func (s *Scope) Name() string { return s.name }

// Window returns the cache's figures since the scope began, up to End.
func (s *Scope) Window() Window {
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	if !s.ended {
		s.count()
	}
	return s.window
}

// Own returns the figures of the scope's own blocks.
func (s *Scope) Own() Own {
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	return s.own
}

// End closes the window. Blocks allocated with the scope's context from now on are charged to the enclosing
// scope. It is idempotent.
func (s *Scope) End() {
	c := s.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.ended {
		return
	}
	s.count()
	s.ended = true
	for i, w := range c.windows {
		if w == s {
			last := len(c.windows) - 1
			c.windows[i], c.windows[last] = c.windows[last], nil
			c.windows = c.windows[:last]
			return
		}
	}
}

type leveled struct {
	level *Level
	of    func(*Stats) int64
}

func (s *Scope) levels() [3]leveled {
	return [3]leveled{
		{&s.window.Allocated, func(t *Stats) int64 { return t.AllocatedBytes.All.Current }},
		{&s.window.Requested, func(t *Stats) int64 { return t.RequestedBytes.All.Current }},
		{&s.window.Reserved, func(t *Stats) int64 { return t.ReservedBytes.All.Current }},
	}
}

// count brings the window up to date. cache.mu is held.
func (s *Scope) count() {
	t, w := &s.cache.stats, &s.window
	for _, l := range s.levels() {
		l.level.Current = l.of(t)
	}
	w.Allocations = since(t.Allocation.All.Allocated, s.base.Allocation.All.Allocated)
	w.Hits = since(t.Hits, s.base.Hits)
	w.Misses = since(t.Misses, s.base.Misses)
	w.DriverAllocs = since(t.NumDeviceAlloc, s.base.NumDeviceAlloc)
}

// since is how far a counter went, also if it was reset in between.
func since(now, then int64) int64 {
	if now < then {
		return now
	}
	return now - then
}

// raise notes a new level in the peaks of the open windows. c.mu is held.
func (c *Cache) raise() {
	t := &c.stats
	for _, s := range c.windows {
		w := &s.window
		w.Allocated.Peak = max(w.Allocated.Peak, t.AllocatedBytes.All.Current)
		w.Requested.Peak = max(w.Requested.Peak, t.RequestedBytes.All.Current)
		w.Reserved.Peak = max(w.Reserved.Peak, t.ReservedBytes.All.Current)
	}
}

// scopeOf is the innermost scope of this cache that ctx carries.
func (c *Cache) scopeOf(ctx context.Context) *Scope {
	s, _ := ctx.Value(scopeKey{}).(*Scope)
	return s.of(c)
}

// of is the innermost scope of the chain that belongs to c.
func (s *Scope) of(c *Cache) *Scope {
	for s != nil && s.cache != c {
		s = s.parent
	}
	return s
}

// charge counts a block in the open scopes of the chain that starts with s. c.mu is held.
func (c *Cache) charge(m *meta, s *Scope) {
	for s != nil && s.ended {
		s = s.parent.of(c)
	}
	m.scope, m.charged = s, 0
	for ; s != nil && !s.ended; s = s.parent.of(c) {
		s.own.Live += m.size
		s.own.Peak = max(s.own.Peak, s.own.Live)
		s.own.Allocations++
		m.charged++
	}
	c.raise()
}

// discharge takes a block out of the scopes that it was charged to. c.mu is held.
func (c *Cache) discharge(m *meta) {
	for s := m.scope; m.charged > 0; s = s.parent.of(c) {
		s.own.Live -= m.size
		m.charged--
	}
	m.scope = nil
}
