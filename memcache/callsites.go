package memcache

import (
	"runtime"
	"slices"
	"sync/atomic"
)

// callSites keeps one copy of each call stack. A program allocates at some hundred call sites, a
// million times. After the first time a stack costs no memory, and little time. The expensive part
// is the walk of runtime.Callers: some 100 ns a frame, most of it for inlined functions, or 5 µs
// for an allocation of a training step. Reading only the return addresses through the frame
// pointers takes less than 100 ns, and distinguishes stacks just as well. So the return addresses
// are the key, and only a new stack is walked. Where frame pointers are missing, or end at C, every
// stack is walked.
type callSites struct {
	byFrames siteTable    // keyed by the return addresses
	byPCs    siteTable    // keyed by the stack itself, which several return-address keys may share
	n        atomic.Int64 // stacks in both
}

// siteTable is a hash table of lists that grow only at their heads, so that a look-up takes no
// lock.
type siteTable [1 << 10]atomic.Pointer[callSite]

// callSite is a stack in a list.
type callSite struct {
	hash     uint64
	key, pcs []uintptr
	next     *callSite
}

// mostCallSites bounds the table: in a program with more stacks, such as a recursive one, the
// others are copied each time.
const mostCallSites = 1 << 16

// mostFrames bounds a stack.
const mostFrames = 64

// caller returns the stack of the function that called Alloc or Free, three frames up: it is called
// by history.stack.
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

// intern returns the one copy of a stack.
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

// hashPCs is FNV by words instead of bytes.
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

// find searches the list from s on.
func (s *callSite) find(hash uint64, key []uintptr) *callSite {
	for ; s != nil; s = s.next {
		if s.hash == hash && slices.Equal(s.key, key) {
			return s
		}
	}
	return nil
}

// add adds s and returns it, unless another goroutine has added an equal one: then it returns that
// one.
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
