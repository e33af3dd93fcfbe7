package matching

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
)

// World are the ranks of a communicator, and what has ended them. Its lock is held for as long as it takes to look at them.
type World struct {
	size int

	mu     sync.Mutex
	ranks  []member
	failed atomic.Pointer[device.CollectiveError]
	over   chan struct{} // closed after failed was set
}

// member is a rank. What it has queued runs in that order: it is in the first of its posts that is not matched.
type member struct {
	here           bool // in this process
	left           bool // closed
	device         string
	posts          []*Post
	collectives    int64 // that it has been in
	sent, received []int64
}

// NewWorld is a world of size ranks, of which none is here.
func NewWorld(size int) *World {
	w := &World{size: size, ranks: make([]member, size), over: make(chan struct{})}
	for i := range w.ranks {
		m := &w.ranks[i]
		m.sent, m.received = make([]int64, size), make([]int64, size)
	}
	return w
}

// Size is the number of ranks.
func (w *World) Size() int { return w.size }

// Join says that a rank is in this process, on a device. It reports false if it was before. All have joined before the first posts.
func (w *World) Join(rank int, device string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ranks[rank].here {
		return false
	}
	w.ranks[rank].here, w.ranks[rank].device = true, device
	return true
}

// On is the rank that is on a device, or -1.
func (w *World) On(device string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := range w.ranks {
		if w.ranks[r].here && w.ranks[r].device == device {
			return r
		}
	}
	return -1
}

// Elsewhere are the ranks that are not in this process; all but rank if there are none.
func (w *World) Elsewhere(rank int) (ranks []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := range w.ranks {
		if !w.ranks[r].here {
			ranks = append(ranks, r)
		}
	}
	for r := 0; len(ranks) == 0 && r < w.size; r++ {
		if r != rank {
			ranks = append(ranks, r)
		}
	}
	if len(ranks) == 0 || w.size == 1 {
		return []int{rank}
	}
	return ranks
}

// Fail ends the world, unless it has ended already.
func (w *World) Fail(err *device.CollectiveError) {
	if w.failed.CompareAndSwap(nil, err) {
		close(w.over)
	}
}

// Failure is what has ended the world, or nil.
func (w *World) Failure() *device.CollectiveError { return w.failed.Load() }

// Over is closed once the world has ended.
func (w *World) Over() <-chan struct{} { return w.over }

// Error is an error that rank has found.
func (w *World) Error(op string, rank int, ranks []int, class error, format string, args ...any) *device.CollectiveError {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failure(op, rank, ranks, class, format, args...)
}

func (w *World) failure(op string, rank int, ranks []int, class error, format string, args ...any) *device.CollectiveError {
	return &device.CollectiveError{Op: op, Device: w.ranks[rank].device, Rank: rank, Size: w.size, Ranks: ranks, Detail: fmt.Sprintf(format, args...), Err: class}
}

// Queue says that a rank queues calls, and returns them as a post. It reports false if the world has ended, perhaps by that: the calls must not be queued then.
func (w *World) Queue(rank int, calls []Call) (*Post, bool) {
	p := &Post{rank: rank, calls: calls, numbers: make([]int64, len(calls)), matched: make([]bool, len(calls)), open: len(calls)}
	w.mu.Lock()
	defer w.mu.Unlock()
	m := &w.ranks[rank]
	m.posts = append(m.posts, p)
	if len(m.posts) == 1 {
		if err := w.enter(p); err != nil {
			w.Fail(err)
		}
	}
	return p, w.Failure() == nil
}

// Leave says that a rank will queue nothing more. Who waits for it fails.
func (w *World) Leave(rank int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ranks[rank].left = true
	for r := range w.ranks {
		if q := w.in(r); q != nil && r != rank && w.waits(q, rank) {
			w.Fail(w.failure("Close", rank, []int{rank}, device.ErrAborted, "rank %d has closed its communicator, and rank %d waits for it", rank, r))
		}
	}
}

// Missing are the ranks that p waits for, itself or by way of others, and that have queued nothing; if there are none here, those elsewhere.
func (w *World) Missing(p *Post) []int {
	w.mu.Lock()
	who := w.absent(p, make([]bool, w.size), nil)
	w.mu.Unlock()
	if len(who) == 0 {
		return w.Elsewhere(p.rank)
	}
	return who
}

func (w *World) absent(q *Post, seen []bool, who []int) []int {
	for r := range w.ranks {
		if seen[r] || !w.waits(q, r) {
			continue
		}
		seen[r] = true
		if next := w.in(r); next == nil {
			who = append(who, r)
		} else if next != q {
			who = w.absent(next, seen, who)
		}
	}
	return who
}
