package memcache

import (
	"runtime"
	"slices"
	"sync/atomic"
)

// callSites keeps one copy of each call stack. A program allocates in some hundred places, a million times: after the first
// time a stack costs no memory, and little time. What costs is the walk of runtime.Callers, some 100 ns a frame, most of it
// for the functions that were inlined: 5 µs for an allocation of a training step. The return addresses alone, which the frame
// pointers lead to, take less than 100 ns, and tell two stacks apart just as well. So they are the key, and the walk is made
// for a stack that is new. Where there are no frame pointers, or they end at C, every stack is walked.
type callSites struct {
	byFrames siteTable    // the key is the return addresses
	byPCs    siteTable    // the key is the stack itself: several ways into the cache have one
	n        atomic.Int64 // stacks in both
}

// siteTable is a table of lists that only grow at their heads, so that a look-up takes no lock.
type siteTable [1 << 10]atomic.Pointer[callSite]

// callSite is a stack in a list.
type callSite struct {
	hash     uint64
	key, pcs []uintptr
	next     *callSite
}

// mostCallSites bounds the table: a program with more stacks, such as one that recurses, gets copies.
const mostCallSites = 1 << 16

// mostFrames bounds a stack.
const mostFrames = 64

// caller is the stack of the caller's caller's caller: who calls Alloc or Free calls history.stack, which calls this.
func (t *callSites) caller() []uintptr {
	var frames, buffer [mostFrames]uintptr
	n, whole := framePCs(&frames[0], len(frames))
	key := frames[:n]
	hash := hashPCs(key)
	if whole {
		if s := t.byFrames.find(hash, key); s != nil {
			return s.pcs
		}
	}
	pcs := t.intern(buffer[:runtime.Callers(4, buffer[:])])
	if whole && t.n.Load() < mostCallSites {
		t.byFrames.add(&callSite{hash: hash, key: slices.Clone(key), pcs: pcs})
		t.n.Add(1)
	}
	return pcs
}

// intern is the one copy of a stack.
func (t *callSites) intern(pcs []uintptr) []uintptr {
	hash := hashPCs(pcs)
	if s := t.byPCs.find(hash, pcs); s != nil {
		return s.pcs
	}
	s := &callSite{hash: hash, pcs: slices.Clone(pcs)}
	s.key = s.pcs
	if t.n.Load() >= mostCallSites {
		return s.pcs
	}
	if known := t.byPCs.add(s); known != s {
		return known.pcs
	}
	t.n.Add(1)
	return s.pcs
}

// hashPCs is as FNV, but by words.
func hashPCs(pcs []uintptr) uint64 {
	var hash uint64 = 14695981039346656037
	for _, pc := range pcs {
		hash = (hash ^ uint64(pc)) * 1099511628211
		hash ^= hash >> 29
	}
	return hash
}

func (t *siteTable) find(hash uint64, key []uintptr) *callSite {
	return t[hash%uint64(len(t))].Load().find(hash, key)
}

// find looks in the list from s on.
func (s *callSite) find(hash uint64, key []uintptr) *callSite {
	for ; s != nil; s = s.next {
		if s.hash == hash && slices.Equal(s.key, key) {
			return s
		}
	}
	return nil
}

// add adds s, unless another goroutine was faster: then it returns that one's.
func (t *siteTable) add(s *callSite) *callSite {
	head := &t[s.hash%uint64(len(t))]
	for {
		s.next = head.Load()
		if known := s.next.find(s.hash, s.key); known != nil {
			return known
		}
		if head.CompareAndSwap(s.next, s) {
			return s
		}
	}
}
