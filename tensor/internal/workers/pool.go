package workers

import (
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
	tick    int
	ticking *time.Timer // nil when no worker waits
	spare   *time.Timer // a stopped timer for reuse
}

var idle idlers

// wake sends a task to helpers workers, and starts the workers that are missing. A worker that
// begins too late finds the task closed.
func (p *idlers) wake(t *task, helpers int) {
	t.holders.Add(int64(helpers))
	p.mu.Lock()
	for helpers > 0 && len(p.workers) > 0 {
		last := len(p.workers) - 1
		w := p.workers[last]
		p.workers = p.workers[:last]
		// The send does not block, because the worker is idle and the channel is empty.
		w.tasks <- t
		helpers--
	}
	p.mu.Unlock()
	for range helpers {
		w := &worker{tasks: make(chan *task, 1)}
		w.tasks <- t
		go w.run()
	}
}

func (w *worker) run() {
	for t := w.next(); t != nil; t = w.next() {
		t.help()
		t.drop()
		idle.add(w)
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

func (p *idlers) add(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
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
