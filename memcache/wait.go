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

// Requests with a context of Wait that find no memory join a queue, in the order of their arrival.
// One waiter at a time has the turn: it tries as any request does, with the full miss path. The
// first waiter gets the turn whenever something was freed since its last attempt. As long as a task
// without a waiter in the queue holds memory, no waiter overtakes the first. If all tasks that hold
// memory are waiting, none of them will free any. Then each of the other waiters tries, because
// there may be enough memory for one of them, which then continues and frees. If none succeeds, the
// last waiter that holds memory fails, so that its program can free it.
//
// A free reads one word to find that there are no waiters. Otherwise it gives the turn to the
// first, and never tries for it.

// task is the unit of work that a context of Wait allocates for.
type task struct {
	cache   *Cache
	parent  *task // the enclosing task, or nil
	waiting int   // requests in the queue, of it or of enclosed tasks; guarded by waitQueue.mu
}

// waitQueue is the queue of a cache's requests that wait for memory.
type waitQueue struct {
	shards *shards
	count  atomic.Int64 // waiters

	mu      sync.Mutex // before shards.mu
	queue   []*waiter
	trying  *waiter
	changes atomic.Uint64 // number of frees while a request waited, plus 1
}

// waiter is a request in the queue.
type waiter struct {
	task  *task
	turn  chan struct{} // buffered, for one
	tried uint64        // changes at its last turn; 0: no turn yet
	fails bool          // instead of trying again
}

// Wait returns a context with which Alloc waits when there is no memory, instead of failing, while
// another task holds memory that it may free. It waits until ctx ends, or until no task is left
// that could free memory. Then it returns the [*OutOfMemoryError], with the time waited and, in
// Err, the reason why it waits no longer.
//
// Each call of Wait begins a task: what one goroutine allocates, works with and frees, such as a
// training step or the answer to a request. The blocks of a task are those that were allocated with
// its context. Wait with the context of a task begins an enclosed task; while that one waits the
// enclosing task counts as waiting, too. A task may free memory if it holds blocks and does not
// wait itself. Blocks of no task are assumed to stay, as a model's parameters do. So a task doesn't
// wait for itself, and tasks don't wait for each other in a circle: the last task of a circle that
// holds memory fails.
//
// Waiting requests are served in order: a request of a task doesn't overtake waiting requests even
// if it could be served, except when they wait for that task's memory. Requests of no task don't
// queue: they are served at once, or fail.
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

// taskOf returns the task of c that ctx belongs to, or nil.
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

// errNobody is the reason why a request waits no longer.
var errNobody = errors.New("no running task holds memory that it could free")

// join appends a request to the queue.
func (q *waitQueue) join(t *task) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := &waiter{task: t, turn: make(chan struct{}, 1)}
	for ; t != nil; t = t.parent {
		t.waiting++
	}
	q.queue = append(q.queue, w)
	q.count.Add(1) // before its first attempt, so that frees from now on are counted
	q.giveTurn()
	return w
}

// leave removes a request from the queue.
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

// wait waits for the turn. The error is the reason why there will be none.
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

// countFree counts a free as soon as its memory is available, before freed gives the turn. The
// caller holds the shard's lock, so a request that no longer finds the freed block in a shard finds
// the free counted.
func (q *waitQueue) countFree() {
	if q.count.Load() != 0 {
		q.changes.Add(1)
	}
}

// freed gives the turn to a waiter, because there may be memory. No lock is held.
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

// giveTurn gives the turn to the next waiter that is due, if no waiter has it. q.mu is held.
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
	if first.tried < q.changes.Load() { // counted by a free that has not yet called freed
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

// held returns the waiters' tasks that hold blocks, themselves or through an enclosing task. others
// reports whether a task that does not wait holds blocks, or a free is pending. q.mu is held.
func (q *waitQueue) held() (held map[*task]bool, others bool) {
	direct := make(map[*task]bool)
	q.shards.lockAll()
	for _, s := range q.shards.list() {
		s.eachActive(func(h *handout) {
			if h.task != nil {
				direct[h.task] = true
			}
			// A pending free gives the turn when it completes. Its task is no longer known.
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
