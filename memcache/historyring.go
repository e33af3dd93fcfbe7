package memcache

import (
	"sync"
	"sync/atomic"
)

// historyRing is a ring of entries. Its lock may be taken under a shard's; nothing is done under it but copying.
type historyRing struct {
	stacks atomic.Uint32 // Stacks

	sites callSites

	mu   sync.Mutex
	list []HistoryEntry
	n    int // entries ever added

	between func() // of a test: called between pieces of a copy
}

// copyPiece is how many entries are copied under the ring's lock at a time: some 10 µs.
const copyPiece = 256

// add enters an event, in place of the oldest one if the ring is full.
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

// entries copies the entries, the oldest first.
func (r *historyRing) entries() []HistoryEntry { return r.before(r.added()) }

// added is how many entries were ever added.
func (r *historyRing) added() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n
}

// before copies the entries before the end-th, the oldest first. Others are added meanwhile: what they take the place of is
// left out, so that there may be fewer than the ring holds.
func (r *historyRing) before(end int) []HistoryEntry {
	first := max(0, end-(len(r.list)-1))
	list := make([]HistoryEntry, end-first)
	from := first
	for at := first; at < end; {
		r.mu.Lock()
		if oldest := r.n - len(r.list); at < oldest {
			at = min(oldest, end)
			from = at // what was copied before that is not connected with what is left
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
