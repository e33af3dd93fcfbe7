package workers

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// idleTime is how long a worker sleeps before it stops. It may sleep up to twice as long. Starting
// a new worker costs a microsecond.
const idleTime = 50 * time.Millisecond

// pool holds the tasks that workers may join, and the workers.
type pool struct {
	_ [64]byte
	// slots hold the tasks that have or had vacancies. If all are taken, a task is run by its own
	// goroutine alone.
	slots   [16]slot
	_       [64]byte     // separates the slots, which all idle workers read, from what changes more often
	polling atomic.Int64 // workers that poll the slots

	mu      sync.Mutex
	asleep  []*worker // the most recent last
	started int       // workers that have not stopped
	tick    int
	ticking bool        // while workers sleep
	timer   *time.Timer // calls reap; nil before the first worker sleeps
}

var shared pool

// slot holds a task or nil.
type slot struct{ atomic.Pointer[task] }

// worker is a goroutine that joins tasks.
type worker struct {
	wake  chan struct{} // receives an element when w is taken from pool.asleep; closed to stop w
	since int           // the tick at which it fell asleep
	// soon is set if the last task came so soon after the one before that polling pays.
	soon bool
}

// offer lets workers join a task, and returns its slot or nil. If fewer workers poll than the tasks
// in the slots have vacancies, offer wakes sleeping workers, and then starts new ones until limit
// exist.
func (p *pool) offer(t *task, limit int) *slot {
	at := p.claim(t)
	missing := p.vacancies() - int(p.polling.Load())
	if at == nil || missing <= 0 {
		return at
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for ; missing > 0; missing-- {
		if last := len(p.asleep) - 1; last >= 0 {
			w := p.asleep[last]
			p.asleep = p.asleep[:last]
			w.wake <- struct{}{} // does not block, because w receives it before it sleeps again
		} else if p.started < limit {
			p.started++
			w := &worker{wake: make(chan struct{}, 1), soon: true}
			go w.run(p)
		} else {
			break
		}
	}
	return at
}

// claim puts t into a slot, or returns nil.
func (p *pool) claim(t *task) *slot {
	for i := range p.slots {
		if s := &p.slots[i]; s.Load() == nil && s.CompareAndSwap(nil, t) {
			return s
		}
	}
	return nil
}

// withdraw keeps further workers from joining t.
func (s *slot) withdraw(t *task) {
	if s != nil && s.Load() == t {
		s.CompareAndSwap(t, nil)
	}
}

// vacancies returns the number of workers that could join tasks.
func (p *pool) vacancies() (n int) {
	for i := range p.slots {
		if t := p.slots[i].Load(); t != nil {
			n += max(0, int(t.vacancies.Load()))
		}
	}
	return n
}

// wants reports whether there are vacancies.
func (p *pool) wants() bool { return p.vacancies() > 0 }

// join enters a task, if one has a vacancy.
func (p *pool) join() (*task, *slot) {
	for i := range p.slots {
		if t := p.slots[i].Load(); t != nil && t.enter() {
			return t, &p.slots[i]
		}
	}
	return nil, nil
}

func (w *worker) run(p *pool) {
	for w.wait(p) {
		if t, at := p.join(); t != nil {
			t.take()
			at.withdraw(t) // no unit is left
			t.leave()
		}
	}
}

// wait waits until a task may have a vacancy. It returns false if w has to stop.
func (w *worker) wait(p *pool) bool {
	began := time.Now()
	if w.soon {
		p.polling.Add(1)
		found := spin(p.wants)
		p.polling.Add(-1)
		if found {
			return true
		}
	}
	p.sleep(w)
	// An offer after the last look and before sleep did not wake w.
	if !p.wants() || !p.rouse(w) {
		if _, ok := <-w.wake; !ok {
			return false
		}
	}
	w.soon = time.Since(began) < spinTime+wakeTime
	return true
}

// sleep adds w to the workers that offer wakes.
func (p *pool) sleep(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.since = p.tick
	p.asleep = append(p.asleep, w)
	switch {
	case p.ticking:
	case p.timer == nil:
		p.timer = time.AfterFunc(idleTime, p.reap)
	default:
		p.timer.Reset(idleTime)
	}
	p.ticking = true
}

// rouse removes w from the sleeping workers, or returns false if it was woken or stopped.
func (p *pool) rouse(w *worker) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.asleep, w)
	if i >= 0 {
		p.asleep = slices.Delete(p.asleep, i, i+1)
	}
	return i >= 0
}

// reap stops the workers that were already asleep at the last tick.
func (p *pool) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for n < len(p.asleep) && p.asleep[n].since < p.tick {
		close(p.asleep[n].wake)
		n++
	}
	kept := copy(p.asleep, p.asleep[n:])
	clear(p.asleep[kept:])
	p.asleep = p.asleep[:kept]
	p.started -= n
	p.tick++
	if p.ticking = kept > 0; p.ticking {
		p.timer.Reset(idleTime)
	}
}
