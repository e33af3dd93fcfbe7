package workers

import (
	"slices"
	"sync"
	"time"

	"github.com/cistern-ml/cistern/internal/race"
)

// idleTime is how long an idle worker waits for work before it stops. It may wait up to twice as
// long. Starting a new worker costs a microsecond.
const idleTime = 50 * time.Millisecond

// worker is a goroutine that waits for tasks; nil stops it.
type worker struct {
	tasks chan *task
	since int // the tick at which it became idle
	// soon is set if the last task came so soon after the one before that spinning pays.
	soon bool
}

// idlers holds the idle workers, the most recent last, and the tasks for reuse.
type idlers struct {
	mu      sync.Mutex
	workers []*worker
	tasks   []*task
	started int     // workers that have not stopped
	wanting []*task // those that want more workers, the newest last
	tick    int
	ticking *time.Timer // nil when no worker waits
	spare   *time.Timer // a stopped timer for reuse
}

var idle idlers

// wake sends a task to as many workers as helpers says: to idle ones, and to new ones until limit
// workers exist. If these are too few, the task wants workers that become idle, and wake returns
// true. A worker that begins too late finds the task closed.
func (p *idlers) wake(t *task, helpers, limit int) (wants bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ; helpers > 0; helpers-- {
		var w *worker
		if last := len(p.workers) - 1; last >= 0 {
			w = p.workers[last]
			p.workers = p.workers[:last]
		} else if p.started < limit {
			p.started++
			w = &worker{tasks: make(chan *task, 1)}
			go w.run()
		} else {
			t.wanted = helpers
			p.wanting = append(p.wanting, t)
			return true
		}
		t.holders.Add(1)
		// The send does not block, because the worker is idle and the channel is empty.
		w.tasks <- t
	}
	return false
}

// forget ends the wish of a task for more workers.
func (p *idlers) forget(t *task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.wanting, t); i >= 0 {
		p.wanting = slices.Delete(p.wanting, i, i+1)
	}
}

func (w *worker) run() {
	for t := w.next(); t != nil; t = w.next() {
		for t != nil {
			t.help()
			t.drop()
			t = idle.add(w)
		}
	}
}

// next returns the next task, or nil if the worker has to stop.
func (w *worker) next() (t *task) {
	began := time.Now()
	took := func() bool {
		select {
		case t = <-w.tasks:
			return true
		default:
			return false
		}
	}
	if !w.soon || !spin(took) {
		t = <-w.tasks
	}
	w.soon = time.Since(began) < spinTime+wakeTime
	return t
}

// add returns a task that wants w, or makes w idle and returns nil.
func (p *idlers) add(w *worker) *task {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := len(p.wanting) - 1; last >= 0 {
		t := p.wanting[last]
		t.holders.Add(1)
		if t.wanted--; t.wanted == 0 {
			p.wanting = p.wanting[:last]
		}
		return t
	}
	w.since = p.tick
	p.workers = append(p.workers, w)
	if p.ticking == nil {
		if p.spare == nil {
			p.spare = time.AfterFunc(idleTime, p.reap)
		} else {
			p.spare.Reset(idleTime)
		}
		p.ticking = p.spare
	}
	return nil
}

// reap stops the workers that were already idle at the last tick.
func (p *idlers) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for n < len(p.workers) && p.workers[n].since < p.tick {
		close(p.workers[n].tasks)
		n++
	}
	kept := copy(p.workers, p.workers[n:])
	clear(p.workers[kept:])
	p.workers = p.workers[:kept]
	p.started -= n
	p.tick++
	if kept > 0 {
		p.ticking.Reset(idleTime)
	} else {
		p.ticking = nil
	}
}

func takeTask() *task {
	if !race.Enabled {
		idle.mu.Lock()
		if last := len(idle.tasks) - 1; last >= 0 {
			t := idle.tasks[last]
			idle.tasks = idle.tasks[:last]
			idle.mu.Unlock()
			return t
		}
		idle.mu.Unlock()
	}
	t := &task{empty: make(chan struct{}, 1)}
	t.ended.L = &t.mu
	return t
}

// drop makes the task available for another job after its last holder.
func (t *task) drop() {
	if t.holders.Add(-1) > 0 || race.Enabled {
		return
	}
	select {
	case <-t.empty: // from a worker that came too late
	default:
	}
	idle.mu.Lock()
	idle.tasks = append(idle.tasks, t)
	idle.mu.Unlock()
}
