package memcache

import (
	"sync"
	"sync/atomic"
)

// historyRing is a ring of entries. Its lock may be taken under a shard's lock; only copying is
// done under it.
type historyRing struct {
	stacks atomic.Uint32 // Stacks

	sites callSites

	mu   sync.Mutex
	list []HistoryEntry
	n    int // entries ever added

	between func() // for tests: called between pieces of a copy
}

// copyPiece is the number of entries that are copied under the ring's lock at a time: some 10 µs.
const copyPiece = 256

// add adds an event, and overwrites the oldest one if the ring is full.
func (r *historyRing) add(e HistoryEntry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := &r.list[r.n%len(r.list)]
	*at = e
	if !Stacks(r.stacks.Load()).keepsStack(e.Action) {
		at.Stack = nil
	}
	r.n++
}

// entries returns a copy of the entries, the oldest first.
func (r *historyRing) entries() []HistoryEntry { return r.before(r.added()) }

// added returns the number of entries ever added.
func (r *historyRing) added() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n
}

// before returns a copy of the entries before the end-th, the oldest first. Entries that are
// overwritten while it copies are left out, so there may be fewer than the ring holds.
func (r *historyRing) before(end int) []HistoryEntry {
	first := max(0, end-(len(r.list)-1))
	list := make([]HistoryEntry, end-first)
	from := first
	for at := first; at < end; {
		r.mu.Lock()
		if oldest := r.n - len(r.list); at < oldest {
			at = min(oldest, end)
			from = at // the entries copied before are not contiguous with the rest
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
