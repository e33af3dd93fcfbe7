package matching

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
)

// World holds the ranks of a communicator, and the failure that has ended them. Its lock is held
// only for look-ups and updates.
type World struct {
	size int

	mu     sync.Mutex
	ranks  []member
	failed atomic.Pointer[device.CollectiveError]
	over   chan struct{} // closed after failed is set
}

// member is the state of one rank. Its posts run in the order in which they were queued; the rank
// is in the first one that is not matched.
type member struct {
	here           bool // in this process
	left           bool // closed
	device         string
	posts          []*Post
	collectives    int64 // number of collectives entered
	sent, received []int64
}

// NewWorld returns a world of size ranks, none of which has joined.
func NewWorld(size int) *World {
	w := &World{size: size, ranks: make([]member, size), over: make(chan struct{})}
	for i := range w.ranks {
		m := &w.ranks[i]
		m.sent, m.received = make([]int64, size), make([]int64, size)
	}
	return w
}

// Size returns the number of ranks.
func (w *World) Size() int { return w.size }

// Join marks a rank as present in this process, on a device. It returns false if the rank has
// joined already. All local ranks must join before the first post.
func (w *World) Join(rank int, device string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ranks[rank].here {
		return false
	}
	w.ranks[rank].here, w.ranks[rank].device = true, device
	return true
}

// On returns the rank that is on a device, or -1.
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

// Elsewhere returns the ranks that are not in this process or, if all are, all ranks except rank.
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

// Failure returns the error that has ended the world, or nil.
func (w *World) Failure() *device.CollectiveError { return w.failed.Load() }

// Over returns a channel that is closed once the world has ended.
func (w *World) Over() <-chan struct{} { return w.over }

// Error returns an error that rank has found.
func (w *World) Error(op string, rank int, ranks []int, class error, format string, args ...any) *device.CollectiveError {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failure(op, rank, ranks, class, format, args...)
}

func (w *World) failure(op string, rank int, ranks []int, class error, format string, args ...any) *device.CollectiveError {
	return &device.CollectiveError{Op: op, Device: w.ranks[rank].device, Rank: rank, Size: w.size, Ranks: ranks, Detail: fmt.Sprintf(format, args...), Err: class}
}

// Queue adds calls to rank's queue and returns them as a post. It returns false if the world has
// ended, perhaps because of these calls; then the caller must not queue them.
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

// Leave marks a rank that will queue nothing more. If another rank waits for it, the world fails.
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

// Missing returns the idle ranks for which p waits, directly or through other ranks. If there are
// none in this process, it returns those elsewhere.
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
