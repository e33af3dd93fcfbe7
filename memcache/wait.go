package memcache

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/device"
)

// Requests of a context of Wait that find no memory stand in a queue, in the order in which they came. One at a time has the turn:
// it tries, as any request does, with all that a miss does for memory. The first has it whenever something was freed since its last
// try. As long as a task that is not in the queue holds memory, nobody overtakes the first. If all who hold memory stand in the queue,
// nobody will free any: then each of the others has a try, since what one needs may be there, and it goes on and frees. If that
// helps nobody, the last one that holds memory fails, which lets its program free it.
//
// Who frees reads one word to see that nobody waits, and otherwise gives the first the turn: it never tries for it.

// task is on whose behalf a context of Wait allocates.
type task struct {
	cache   *Cache
	parent  *task // whose call this one's is a part of, or nil
	waiting int   // requests in the queue, of it or of tasks inside; guarded by waitQueue.mu
}

// waitQueue has the requests of a cache that wait for memory.
type waitQueue struct {
	shards *shards
	count  atomic.Int64 // waiters

	mu      sync.Mutex // before shards.mu
	queue   []*waiter
	trying  *waiter
	changes atomic.Uint64 // how often something was freed while a request waited, from 1 on
}

// waiter is a request in the queue.
type waiter struct {
	task  *task
	turn  chan struct{} // has room for one
	tried uint64        // the changes when it last had the turn; 0: never
	fails bool          // instead of trying once more
}

// Wait returns a context with which Alloc waits when there is no memory, instead of failing, while somebody else holds some who
// will free it. It waits until ctx ends; then, and when nobody is left who could free anything, the error is the
// [*OutOfMemoryError], with the time and, in Err, why it did not wait on.
//
// Each call of Wait begins a task: what one goroutine allocates, works with and frees, as a training step or the answer to a request.
// Its blocks are those that were allocated with its context. Wait with the context of a task begins one inside of it, whose waits
// are also its. Others hold memory that may be freed if they hold blocks and don't wait themselves; blocks of no task are taken to
// stay, as a model's parameters do. So tasks don't wait for themselves, nor for each other in a circle: of those in a circle the last one
// that holds memory fails.
//
// Who waits is served in order: a request of a task doesn't overtake those that wait, even if it could be served, unless that is what
// they wait for. Requests of no task are served at once, or fail.
func (c *Cache) Wait(ctx context.Context) context.Context {
	return carry(ctx, func(within *carrier) {
		t := &task{cache: c}
		tasks := []*task{t}
		rare := *within.state.rarely()
		for _, o := range rare.tasks {
			if o.cache == c {
				t.parent = o
			} else {
				tasks = append(tasks, o)
			}
		}
		rare.tasks = tasks
		within.state.rare = &rare
	})
}

// taskOf returns the task of c that the context is of, or nil.
func (state *ctxState) taskOf(c *Cache) *task {
	if state.rare == nil {
		return nil
	}
	for _, t := range state.rare.tasks {
		if t.cache == c {
			return t
		}
	}
	return nil
}

// allocWaiting is allocAsking in the queue. No lock is held.
func (g *grower) allocWaiting(ctx context.Context, stream device.Stream, r *request) (err error) {
	if g.waits.count.Load() == 0 {
		if err = g.allocAsking(ctx, stream, r); err == nil || !errors.Is(err, ErrOutOfMemory) && ctx.Err() == nil {
			return err
		}
	}
	start := time.Now()
	_, op := g.reporter.start(ctx, OpWait)
	defer func() {
		g.reporter.end(op, OpInfo{Op: OpWait, Stream: stream.ID(), Requested: r.Requested, Label: r.label.value(), Err: err})
	}()
	w := g.waits.join(r.task)
	defer g.waits.leave(w)
	for {
		ended := g.waits.wait(ctx, w)
		if ended == nil {
			err = g.allocAsking(ctx, stream, r)
			if ended = ctx.Err(); err == nil || !errors.Is(err, ErrOutOfMemory) && ended == nil {
				return err
			}
		}
		if ended != nil {
			err = g.outOfMemory(r, nil)
			var oom *OutOfMemoryError
			if errors.As(err, &oom) {
				oom.Waited, oom.Err = max(time.Since(start), 1), ended
			}
			return err
		}
		g.waits.failed(w)
	}
}

// errNobody is why a request waits no longer.
var errNobody = errors.New("nobody who does not wait holds memory that could be freed")

// join puts a request at the end of the queue.
func (q *waitQueue) join(t *task) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := &waiter{task: t, turn: make(chan struct{}, 1)}
	for ; t != nil; t = t.parent {
		t.waiting++
	}
	q.queue = append(q.queue, w)
	q.count.Add(1) // before its first try: what is freed from now on is told
	q.giveTurn()
	return w
}

// leave takes a request out.
func (q *waitQueue) leave(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for t := w.task; t != nil; t = t.parent {
		t.waiting--
	}
	q.queue = slices.DeleteFunc(q.queue, func(o *waiter) bool { return o == w })
	q.count.Add(-1)
	if q.trying == w {
		q.trying = nil
	}
	q.giveTurn()
}

// wait waits for the turn. The error is why there will be none.
func (q *waitQueue) wait(ctx context.Context, w *waiter) error {
	select {
	case <-w.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.fails {
		return errNobody
	}
	return nil
}

// failed ends the turn of a request that found no memory.
func (q *waitQueue) failed(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.trying == w {
		q.trying = nil
	}
	q.giveTurn()
}

// countFree counts a free as soon as its memory is available, before freed gives the turn. The caller
// holds the shard's lock. Therefore a request that no longer finds the freed block in a shard finds the
// free counted.
func (q *waitQueue) countFree() {
	if q.count.Load() != 0 {
		q.changes.Add(1)
	}
}

// freed tells those who wait that there may be memory. No lock is held.
func (q *waitQueue) freed() {
	if q.count.Load() != 0 {
		q.changed()
	}
}

func (q *waitQueue) changed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.changes.Add(1)
	q.giveTurn()
}

// giveTurn gives the turn to whom it is due, if nobody has it. q.mu is held.
func (q *waitQueue) giveTurn() {
	if q.trying != nil || len(q.queue) == 0 {
		return
	}
	first := q.queue[0]
	if first.tried < q.changes.Load() {
		q.give(first)
		return
	}
	held, others := q.held()
	if others {
		return
	}
	if first.tried < q.changes.Load() { // by a free before its call of freed
		q.give(first)
		return
	}
	for _, w := range q.queue {
		if w.tried < q.changes.Load() {
			q.give(w)
			return
		}
	}
	last := q.queue[len(q.queue)-1]
	for _, w := range q.queue {
		if held[w.task] {
			last = w
		}
	}
	last.fails = true
	q.give(last)
}

func (q *waitQueue) give(w *waiter) {
	q.trying, w.tried = w, q.changes.Load()
	w.turn <- struct{}{}
}

// held are the tasks that hold blocks, or a task around them does, and whether one of them does not wait. q.mu is held.
func (q *waitQueue) held() (held map[*task]bool, others bool) {
	direct := make(map[*task]bool)
	q.shards.lockAll()
	for _, s := range q.shards.list() {
		s.eachActive(func(h *handout) {
			if h.task != nil {
				direct[h.task] = true
			}
			// A free that is under way tells when it is over; whom it was of is forgotten.
			others = others || h.pending || h.task != nil && h.task.waiting == 0
		})
	}
	q.shards.unlockAll()
	held = make(map[*task]bool)
	for _, w := range q.queue {
		for t := w.task; t != nil; t = t.parent {
			held[w.task] = held[w.task] || direct[t]
		}
	}
	return held, others
}
