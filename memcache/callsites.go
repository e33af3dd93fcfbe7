package memcache

import (
	"runtime"
	"slices"
	"sync/atomic"
)

// callSites keeps one copy of each call stack. A program allocates in some hundred places, a million times: after the first
// time a stack costs its walk, about 1 µs, and no memory. It is a table of lists that only grow at their heads, so that a
// look-up takes no lock.
type callSites struct {
	heads [1 << 10]atomic.Pointer[callSite]
	n     atomic.Int64
}

// callSite is a stack in a list.
type callSite struct {
	hash uint64
	pcs  []uintptr
	next *callSite
}

// mostCallSites bounds the table: a program with more stacks, such as one that recurses, gets copies.
const mostCallSites = 1 << 16

// mostFrames bounds a stack.
const mostFrames = 64

// caller is the stack of the caller's caller's caller: who calls Alloc or Free calls history.stack, which calls this.
func (t *callSites) caller() []uintptr {
	var buffer [mostFrames]uintptr
	pcs := buffer[:runtime.Callers(4, buffer[:])]
	var hash uint64 = 14695981039346656037 // as FNV, but by words
	for _, pc := range pcs {
		hash = (hash ^ uint64(pc)) * 1099511628211
		hash ^= hash >> 29
	}
	head := &t.heads[hash%uint64(len(t.heads))]
	for {
		first := head.Load()
		for s := first; s != nil; s = s.next {
			if s.hash == hash && slices.Equal(s.pcs, pcs) {
				return s.pcs
			}
		}
		s := &callSite{hash: hash, pcs: slices.Clone(pcs), next: first}
		if t.n.Load() >= mostCallSites {
			return s.pcs
		}
		if head.CompareAndSwap(first, s) {
			t.n.Add(1)
			return s.pcs
		}
	}
}
