package memcache

import (
	"cmp"
	"fmt"
	"slices"
)

// Profile says who holds the memory of a cache at one moment.
type Profile struct {
	// Bytes. Active is what is allocated, or freed and waiting for a recorded stream; what is reserved and not active is free
	// memory that the cache keeps, or can't use: fragmentation.
	Allocated, Active, Reserved int64
	// Holdings add up to Allocated, the largest first.
	Holdings []Holding
}

// Holding is the blocks of one owner, of one size and from one place in the program.
type Holding struct {
	Label
	Stack     []uintptr // of the allocations, the innermost call first, with the history's stacks; else nil
	Size      int64     // bytes of each block
	Blocks    int
	Bytes     int64 // of all blocks
	Requested int64 // bytes that were asked for, before rounding
}

// Share is a part of a profile.
type Share struct {
	Name   string
	Blocks int
	Bytes  int64
}

// Profile returns who holds what is allocated now. Every request waits while the blocks are walked.
func (c *Cache) Profile() Profile {
	c.lockAll()
	defer c.unlockAll()
	return c.profileNow()
}

// profileNow is Profile with all shards locked.
func (c *Cache) profileNow() Profile {
	b := newProfileBuilder()
	now := peakMark{reserved: c.stats.ReservedBytes.All.Current}
	for _, s := range c.table.Load().list {
		now.active += s.inUse(allPools, gaugeActiveBytes)
		if !c.closed {
			s.eachLive(func(m *chunk) { b.add(m.note()) })
		}
	}
	return b.profile(now)
}

// PeakProfile returns who held the memory when MaxMemoryAllocated was reached for the first time since New or
// ResetPeakStats. Its holdings add up to that peak to the byte, whatever was freed since. Of several goroutines it is one
// order of what happened, in which every stream's own order holds.
func (c *Cache) PeakProfile() Profile {
	c.lockAll()
	defer c.unlockAll()
	return c.composition(c.peak, func(s *shard) *peakLog { return &s.peak })
}

// PeakProfile returns who held the cache's memory at the peak of the scope's window, as [Cache.PeakProfile] does. It must
// be called before End: a scope that has ended gives the zero Profile.
func (s *Scope) PeakProfile() Profile {
	c := s.cache
	c.lockAll()
	defer c.unlockAll()
	i := slices.Index(c.openScopes, s)
	if i < 0 {
		return Profile{}
	}
	return c.composition(s.peak, func(s *shard) *peakLog { return &s.scopes[i].peak })
}

// composition is the profile of a marked peak. All shards are locked.
func (c *Cache) composition(mark peakMark, log func(*shard) *peakLog) Profile {
	b := newProfileBuilder()
	for _, s := range c.table.Load().list {
		l := log(s)
		for _, f := range l.freed {
			b.add(f)
		}
		if c.closed {
			continue // Close noted what was in use
		}
		s.eachLive(func(m *chunk) {
			if m.born <= l.before {
				b.add(m.note())
			}
		})
	}
	return b.profile(mark)
}

// Sum adds the profile up by what key says of a holding, such as its module: the largest share first, equal ones by name.
func (p Profile) Sum(key func(Holding) string) []Share {
	sums := make(map[string]*Share)
	var list []*Share
	for _, h := range p.Holdings {
		name := key(h)
		s := sums[name]
		if s == nil {
			s = &Share{Name: name}
			sums[name], list = s, append(list, s)
		}
		s.Blocks += h.Blocks
		s.Bytes += h.Bytes
	}
	out := make([]Share, len(list))
	for i, s := range list {
		out[i] = *s
	}
	slices.SortFunc(out, func(a, b Share) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// profileBuilder puts blocks of one owner, size and stack together.
type profileBuilder struct {
	at       map[holdingKey]int
	holdings []Holding
}

type holdingKey struct {
	label Label
	size  int64
	stack string
}

func newProfileBuilder() *profileBuilder { return &profileBuilder{at: make(map[holdingKey]int)} }

func (b *profileBuilder) add(f freedBlock) {
	k := holdingKey{label: f.label.value(), size: f.size}
	if len(f.stack) > 0 {
		k.stack = fmt.Sprint(f.stack)
	}
	i, ok := b.at[k]
	if !ok {
		i = len(b.holdings)
		b.at[k], b.holdings = i, append(b.holdings, Holding{Label: k.label, Stack: f.stack, Size: f.size})
	}
	h := &b.holdings[i]
	h.Blocks++
	h.Bytes += f.size
	h.Requested += f.requested
}

func (b *profileBuilder) profile(mark peakMark) Profile {
	p := Profile{Active: mark.active, Reserved: mark.reserved, Holdings: b.holdings}
	for _, h := range p.Holdings {
		p.Allocated += h.Bytes
	}
	slices.SortStableFunc(p.Holdings, func(a, b Holding) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Module, b.Module), cmp.Compare(a.Category, b.Category),
			cmp.Compare(a.Step, b.Step), cmp.Compare(a.Tags, b.Tags), cmp.Compare(b.Size, a.Size), slices.Compare(a.Stack, b.Stack))
	})
	return p
}
