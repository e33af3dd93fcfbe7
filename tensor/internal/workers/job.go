package workers

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/internal/race"
)

// Job is work in phases. The units of a phase may run at the same time and in any order. A phase
// begins after all units of the phase before it.
type Job interface {
	// Units returns the number of units of a phase, which may be 0.
	Units(phase int) int
	// Run runs one unit.
	Run(phase, unit int)
}

// Do runs the phases of a job on the calling goroutine and at most helpers others. It returns after
// the last phase, or panics with a unit of the calling goroutine after the other units that have
// begun.
func Do(j Job, phases, helpers int) {
	limit := runtime.GOMAXPROCS(0) - 1
	helpers = min(helpers, limit)
	if helpers <= 0 {
		for phase := range phases {
			for unit := range j.Units(phase) {
				j.Run(phase, unit)
			}
		}
		return
	}
	t := takeTask()
	t.begin(j, phases)
	t.holders.Store(1)
	if race.Enabled {
		t.alone(helpers)
		return
	}
	wants := idle.wake(t, helpers, limit)
	defer func() { // also if a unit panics
		if wants {
			idle.forget(t)
		}
		t.finish()
		t.drop()
	}()
	t.take()
}

// task is a job that several goroutines run together.
type task struct {
	job    Job
	phases int
	// next is the phase, shifted by 32 bits, plus the next unit that is not taken.
	next atomic.Uint64
	left atomic.Int64 // units of the phase that have not finished
	// inside counts the workers that run units, plus closed once no more workers may enter.
	inside atomic.Int64
	empty  chan struct{} // receives an element when the last worker leaves a closed task
	// holders counts the goroutines that may still use the task: Do, and the workers that were
	// woken for it or joined it later.
	holders atomic.Int64
	// wanted is the number of workers that are missing while the task is in idle.wanting, under its
	// lock.
	wanted int

	waiting atomic.Int64 // goroutines that sleep until the phase ends
	mu      sync.Mutex
	ended   sync.Cond
}

const (
	closed    = int64(1) << 40
	phaseUnit = uint64(1) << 32
)

func (t *task) begin(j Job, phases int) {
	t.job, t.phases = j, phases
	t.inside.Store(0)
	t.next.Store(0)
	t.left.Store(int64(j.Units(0)))
	if t.left.Load() == 0 {
		t.advance(0)
	}
}

// help runs units, unless the task is closed.
func (t *task) help() {
	if t.inside.Add(1) < closed {
		t.take()
	}
	if t.inside.Add(-1) == closed {
		select {
		case t.empty <- struct{}{}:
		default:
		}
	}
}

// finish closes the task, in which no further unit begins, and waits for the workers inside.
// Afterwards no worker uses the job.
func (t *task) finish() {
	t.advance(t.phases - 1)
	if t.inside.Add(closed) != closed && !spin(func() bool { return t.inside.Load() == closed }) {
		for t.inside.Load() != closed {
			<-t.empty
		}
	}
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
		t.job = nil
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
			t.await(phase)
			continue
		}
		t.job.Run(phase, unit)
		if t.left.Add(-1) == 0 {
			t.advance(phase)
		}
	}
}

// advance begins the next phase that has units. It is called once for each phase that ends.
func (t *task) advance(phase int) {
	for phase++; phase < t.phases; phase++ {
		if n := t.job.Units(phase); n > 0 {
			t.left.Store(int64(n))
			break
		}
	}
	t.next.Store(uint64(phase) * phaseUnit)
	if t.waiting.Load() > 0 {
		t.mu.Lock()
		t.ended.Broadcast()
		t.mu.Unlock()
	}
}

func (t *task) over(phase int) bool { return int(t.next.Load()>>32) != phase }

// await waits for the end of a phase. The rest of its units are running on other processors.
func (t *task) await(phase int) {
	if spin(func() bool { return t.over(phase) }) {
		return
	}
	t.mu.Lock()
	t.waiting.Add(1)
	for !t.over(phase) {
		t.ended.Wait()
	}
	t.waiting.Add(-1)
	t.mu.Unlock()
}
