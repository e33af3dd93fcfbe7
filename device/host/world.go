package host

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/matching"
	"github.com/cistern-ml/cistern/internal/race"
)

// world is what the ranks of a communicator share: what each of them is in, and what has ended them
// all.
//
// An operation comes here when its stream runs it, as a post: one call or a group's. It is matched
// with other ranks' posts, call by call; once all of its calls are, its rank does its share of the
// work on its own stream, which touches other ranks' memory; then it waits until all who touch its
// memory have done theirs.
//
// The lock is hidden from the race detector. The edges are those of the posts: from the begin of
// each to the work of those who read its memory, and from the end of that to the posts whose memory
// it touched. So ranks are ordered as far as the operation orders them, and no further.
type world struct {
	mu      sync.Mutex
	idle    sync.Cond // working became 0
	ranks   []member
	working int // ranks that touch others' memory now; none begins after a failure
	at      []int
	seen    []bool

	failed atomic.Pointer[device.CollectiveError]
	over   chan struct{} // closed after failed was set
}

// member is a rank.
type member struct {
	post           *post // that it is in; nil: none
	left           bool  // aborted or closed
	ticket         int64 // of the last post
	collectives    int64 // that it has begun
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

// failure is what has ended the world, or nil.
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

// troubles are what is wrong with a post.
type troubles uint8

const (
	noTrouble  troubles = iota
	disordered          // it ran before one that was queued before it
	gone                // its rank has left
	differs             // another rank's call of the same number is another one
	circle              // ranks wait for each other in calls that don't match
	deserted            // a rank that it waits for has left
)

// trouble is what enter has found: between call of the post and callOf of another one, which rank
// is in.
type trouble struct {
	kind         troubles
	call, callOf int
	rank         int
	other        *post
}

// enter makes p what its rank is in, and matches it.
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

// match looks for the other sides of call i of p.
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

// find is the index in q of the other side of call i of p, or -1.
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

// waiting looks whether q, which is in an operation that is not matched, can ever be: not if who it
// waits for has left, or waits for start by way of others.
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
			continue // it will come, or be done and come
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

// missing fills who with the ranks that p waits for, itself or by way of others, and that are in
// nothing. It returns how many.
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

// begin reports whether p may begin its work: not after a failure.
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

// worked says that the work of p is done.
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

// leave says that p's rank is in nothing any more. After a failure it waits until nobody touches
// p's memory.
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

// part says that rank has left. It returns another one that waits for it, or -1.
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
