package workers

import (
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/tensor/internal/spare"
)

// task is a job that several goroutines run together. It is reused for another job at once, although
// a worker that saw it in the pool may still try to enter it. Such a worker enters the next job, or
// finds no vacancy.
type task struct {
	job     Job
	phases  int
	helpers int

	_ [64]byte // separates what goroutines inside read for each unit from what they change
	// next is the phase, shifted by 32 bits, plus the next unit that is not taken.
	next atomic.Uint64
	left atomic.Int64 // units of the phase that have not finished
	_    [64]byte     // separates them from what all idle workers read

	// vacancies is the number of further workers that may enter, less by closed between jobs. It only
	// changes by additions, so that those of late workers do not matter.
	vacancies atomic.Int64
	waiting   atomic.Int64 // goroutines that sleep in await
	mu        sync.Mutex
	changed   sync.Cond
}

const (
	closed    = int64(1) << 40
	phaseUnit = uint64(1) << 32
)

var tasks spare.Pool[task]

func takeTask() *task {
	t := tasks.Take()
	if t.changed.L == nil { // new
		t.changed.L = &t.mu
		t.vacancies.Store(-closed)
	}
	return t
}

// begin opens the task for a job.
func (t *task) begin(j Job, phases, helpers int) {
	t.job, t.phases, t.helpers = j, phases, helpers
	t.next.Store(0)
	t.left.Store(int64(j.Units(0)))
	if t.left.Load() == 0 {
		t.advance(0)
	}
	t.vacancies.Add(closed + int64(helpers))
}

// enter takes a vacancy for a worker and reports whether there was one. If so, the worker must call
// leave.
func (t *task) enter() bool {
	if t.vacancies.Load() <= 0 {
		return false
	}
	if t.vacancies.Add(-1) < 0 {
		t.leave()
		return false
	}
	return true
}

func (t *task) leave() {
	t.vacancies.Add(1)
	t.notify()
}

// finish closes the task, in which no further unit begins, and waits for the workers inside.
// Afterwards no worker uses the job.
func (t *task) finish() {
	t.advance(t.phases - 1)
	t.vacancies.Add(-closed - int64(t.helpers))
	t.await(func() bool { return t.vacancies.Load() == -closed })
	t.job = nil
}

// alone runs the task on goroutines of its own.
func (t *task) alone(helpers int) {
	var wg sync.WaitGroup
	for range helpers {
		wg.Go(t.take)
	}
	defer func() { // also if a unit panics
		t.advance(t.phases - 1)
		wg.Wait()
	}()
	t.take()
}

// take runs units until those of the last phase are taken.
func (t *task) take() {
	for {
		n := t.next.Add(1) - 1
		phase, unit := int(n>>32), int(n&(phaseUnit-1))
		switch {
		case phase >= t.phases:
			return
		case unit >= t.job.Units(phase):
			if phase == t.phases-1 {
				return
			}
			// The rest of its units are running on other processors.
			t.await(func() bool { return int(t.next.Load()>>32) != phase })
			continue
		}
		t.job.Run(phase, unit)
		if t.left.Add(-1) == 0 {
			t.advance(phase)
		}
	}
}

// advance begins the next phase that has units. It is called when all units of a phase have ended,
// or to end the job.
func (t *task) advance(phase int) {
	for phase++; phase < t.phases; phase++ {
		if n := t.job.Units(phase); n > 0 {
			t.left.Store(int64(n))
			break
		}
	}
	t.next.Store(uint64(phase) * phaseUnit)
	t.notify()
}

// await returns when ready is true. It looks again after each notify.
func (t *task) await(ready func() bool) {
	if spin(ready) {
		return
	}
	t.mu.Lock()
	t.waiting.Add(1)
	for !ready() {
		t.changed.Wait()
	}
	t.waiting.Add(-1)
	t.mu.Unlock()
}

func (t *task) notify() {
	if t.waiting.Load() > 0 {
		t.mu.Lock()
		t.changed.Broadcast()
		t.mu.Unlock()
	}
}
