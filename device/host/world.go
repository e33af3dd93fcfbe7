package host

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/matching"
	"github.com/cistern-ml/cistern/internal/race"
)

// world is the shared state of a communicator's ranks: the operation that each rank is in, and the
// failure that has ended them all.
//
// A stream that runs an operation enters it as a post: one call or a group of calls. It is matched
// with the other ranks' posts, call by call. Once all of its calls are matched, the rank does its
// share of the work on its own stream, which accesses other ranks' memory. Then it waits until all
// ranks that access its memory have done theirs.
//
// The lock is hidden from the race detector. The edges are those of the posts: from the begin of a
// post to the work of the ranks that read its memory, and from the end of that work to the posts
// whose memory it accessed. So ranks are ordered only as far as the operation orders them.
type world struct {
	mu      sync.Mutex
	idle    sync.Cond // working became 0
	ranks   []member
	working int // number of ranks that access others' memory; after a failure none begins
	at      []int
	seen    []bool

	failed atomic.Pointer[device.CollectiveError]
	over   chan struct{} // closed after failed is set
}

// member is the state of one rank.
type member struct {
	post           *post // the post that the rank is in, or nil
	left           bool  // aborted or closed
	ticket         int64 // the last post's
	collectives    int64 // number of collectives begun
	sent, received []int64
}

func newWorld(size int) *world {
	w := &world{ranks: make([]member, size), at: make([]int, size), seen: make([]bool, size), over: make(chan struct{})}
	w.idle.L = &w.mu
	for i := range w.ranks {
		m := &w.ranks[i]
		m.sent, m.received = make([]int64, size), make([]int64, size)
	}
	return w
}

//go:norace
func (w *world) lock() {
	race.Disable()
	w.mu.Lock()
}

//go:norace
func (w *world) unlock() {
	w.mu.Unlock()
	race.Enable()
}

// fail ends the world, unless it has ended already.
//
//go:norace
func (w *world) fail(err *device.CollectiveError) {
	race.ReleaseMerge(unsafe.Pointer(err))
	w.lock()
	if w.failed.CompareAndSwap(nil, err) {
		close(w.over)
	}
	w.unlock()
}

// failure returns the error that has ended the world, or nil.
//
//go:norace
func (w *world) failure() *device.CollectiveError {
	race.Disable()
	err := w.failed.Load()
	race.Enable()
	if err != nil {
		race.Acquire(unsafe.Pointer(err))
	}
	return err
}

// troubles is the class of what is wrong with a post.
type troubles uint8

const (
	noTrouble  troubles = iota
	disordered          // it ran before an operation that was queued earlier
	gone                // its rank has left
	differs             // another rank's call of the same number differs
	circle              // ranks wait for each other in calls that don't match
	deserted            // a rank for which it waits has left
)

// trouble is a finding of enter: between call of the post and callOf of the post other, which rank
// is in.
type trouble struct {
	kind         troubles
	call, callOf int
	rank         int
	other        *post
}

// enter makes p its rank's post, and matches it.
//
//go:norace
func (w *world) enter(p *post, ticket int64) trouble {
	w.lock()
	tr := w.enterLocked(p, ticket)
	w.unlock()
	return tr
}

//go:norace
func (w *world) enterLocked(p *post, ticket int64) trouble {
	m := &w.ranks[p.rank]
	switch {
	case m.left:
		return trouble{kind: gone}
	case m.post != nil || ticket != captureTicket && ticket < m.ticket:
		return trouble{kind: disordered, other: m.post}
	}
	if ticket != captureTicket {
		m.ticket = ticket
	}
	m.post = p
	for i := range p.calls {
		counter := &m.collectives
		switch c := &p.calls[i]; c.Kind {
		case matching.Send:
			counter = &m.sent[c.Peer]
		case matching.Recv:
			counter = &m.received[c.Peer]
		}
		p.numbers[i] = *counter
		*counter++
	}
	for i := range p.calls {
		if p.with[i][p.rank] != nil {
			continue // both sides are in this post
		}
		if tr := w.match(p, i); tr.kind != noTrouble {
			return tr
		}
	}
	if p.open == 0 {
		return trouble{}
	}
	for r := range w.seen {
		w.seen[r] = false
	}
	return w.waiting(p, p.rank)
}

// match looks for the counterparts of call i of p.
//
//go:norace
func (w *world) match(p *post, i int) trouble {
	c := &p.calls[i]
	if c.Kind.Pairs() {
		q := w.ranks[c.Peer].post
		j := w.find(q, p, i)
		if j < 0 {
			return trouble{}
		}
		if !c.Matches(&q.calls[j]) {
			return trouble{kind: differs, call: i, callOf: j, rank: c.Peer, other: q}
		}
		p.with[i][c.Peer], p.with[i][p.rank] = q, p
		q.with[j][p.rank], q.with[j][q.rank] = p, q
		p.matched()
		q.matched()
		return trouble{}
	}
	all := true
	for r := range w.ranks {
		q := w.ranks[r].post
		j := w.find(q, p, i)
		w.at[r] = j
		if j < 0 {
			all = false
		} else if !c.Matches(&q.calls[j]) {
			return trouble{kind: differs, call: i, callOf: j, rank: r, other: q}
		}
	}
	if all {
		for r := range w.ranks {
			q := w.ranks[r].post
			for o := range w.ranks {
				q.with[w.at[r]][o] = w.ranks[o].post
			}
			q.matched()
		}
	}
	return trouble{}
}

// find returns the index in q of the counterpart of call i of p, or -1.
//
//go:norace
func (w *world) find(q, p *post, i int) int {
	if q == nil {
		return -1
	}
	return matching.Find(q.calls, q.numbers, &p.calls[i], p.numbers[i], p.rank)
}

// waits reports whether q waits for rank r.
//
//go:norace
func (w *world) waits(q *post, r int) bool {
	for i := range q.calls {
		c := &q.calls[i]
		if q.with[i][q.rank] == nil && (!c.Kind.Pairs() || c.Peer == r) && w.find(w.ranks[r].post, q, i) < 0 {
			return true
		}
	}
	return false
}

// waiting checks whether the unmatched post q can still be matched. It can't if a rank for which it
// waits has left, or waits for start, directly or through other ranks.
//
//go:norace
func (w *world) waiting(q *post, start int) trouble {
	for r := range w.ranks {
		if !w.waits(q, r) {
			continue
		}
		if w.ranks[r].left {
			return trouble{kind: deserted, rank: r}
		}
		next := w.ranks[r].post
		if next == nil || next.open == 0 {
			// The rank will come, or complete its present post and then come.
			continue
		}
		if r == start {
			return trouble{kind: circle, rank: q.rank, other: q}
		}
		if !w.seen[r] {
			w.seen[r] = true
			if tr := w.waiting(next, start); tr.kind != noTrouble {
				return tr
			}
		}
	}
	return trouble{}
}

// missing fills who with the idle ranks for which p waits, directly or through other ranks. It
// returns their number.
//
//go:norace
func (w *world) missing(p *post, who []int) int {
	w.lock()
	for r := range w.seen {
		w.seen[r] = false
	}
	n := w.absent(p, who, 0)
	w.unlock()
	return n
}

//go:norace
func (w *world) absent(q *post, who []int, n int) int {
	for r := range w.ranks {
		if w.seen[r] || !w.waits(q, r) {
			continue
		}
		w.seen[r] = true
		if next := w.ranks[r].post; next != nil && next.open > 0 && next != q {
			n = w.absent(next, who, n)
		} else if next == nil {
			who[n] = r
			n++
		}
	}
	return n
}

// begin reports whether a rank may begin its work, and counts it. After a failure it may not.
//
//go:norace
func (w *world) begin() bool {
	w.lock()
	ok := w.failed.Load() == nil
	if ok {
		w.working++
	}
	w.unlock()
	return ok
}

// worked marks the work of p as done.
//
//go:norace
func (w *world) worked(p *post) {
	w.lock()
	if w.working--; w.working == 0 {
		w.idle.Broadcast()
	}
	for i := range p.calls {
		for r := range w.ranks {
			if q := p.with[i][r]; q != nil && p.touches(i, q) {
				q.settle()
			}
		}
	}
	p.settle()
	w.unlock()
}

// leave clears the post of p's rank. After a failure it first waits until no rank accesses p's
// memory.
//
//go:norace
func (w *world) leave(p *post) {
	w.lock()
	for w.failed.Load() != nil && w.working > 0 {
		w.idle.Wait()
	}
	w.ranks[p.rank].post = nil
	w.unlock()
}

// part marks rank as left. It returns another rank that waits for it, or -1.
//
//go:norace
func (w *world) part(rank int) (waiting int) {
	w.lock()
	waiting = -1
	w.ranks[rank].left = true
	for r := range w.ranks {
		if q := w.ranks[r].post; q != nil && q.open > 0 && r != rank && w.waits(q, rank) {
			waiting = r
		}
	}
	w.unlock()
	return waiting
}
