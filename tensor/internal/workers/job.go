package workers

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/internal/race"
)

// Job is work in phases, each of units that may run at once and in any order. All units of a phase are done when those of the
// next begin.
type Job interface {
	// Units is the number of units of a phase, which may be 0.
	Units(phase int) int
	// Run does one unit.
	Run(phase, unit int)
}

// Do runs the phases of a job on the calling goroutine and at most so many others, and returns when all are done.
func Do(j Job, phases, helpers int) {
	helpers = min(helpers, runtime.GOMAXPROCS(0)-1)
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
	} else {
		idle.wake(t, helpers)
		t.take()
		t.finish()
	}
	t.drop()
}

// task is a job that goroutines do together.
type task struct {
	job    Job
	phases int
	// next is the phase, above 32 bits with the next unit that nobody has taken.
	next atomic.Uint64
	left atomic.Int64 // units of the phase that are not done
	// inside counts the workers that do units, plus closed when no more may come in.
	inside atomic.Int64
	empty  chan struct{} // gets an element when the last worker leaves a closed task
	// holders counts who may still look at the task: its maker, and workers that were woken for it.
	holders atomic.Int64

	waiting atomic.Int64 // who sleeps until the phase ends
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

// help does units, if the task still takes anyone.
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

// finish waits for those who are inside; afterwards nobody touches the job.
func (t *task) finish() {
	if t.inside.Add(closed) != closed && !spin(func() bool { return t.inside.Load() == closed }) {
		for t.inside.Load() != closed {
			<-t.empty
		}
	}
	t.job = nil
}

// alone is the task done by goroutines of its own.
func (t *task) alone(helpers int) {
	var wg sync.WaitGroup
	for range helpers {
		wg.Go(t.take)
	}
	t.take()
	wg.Wait()
	t.job = nil
}

// take does units until the last phase is over.
func (t *task) take() {
	for {
		n := t.next.Add(1) - 1
		phase, unit := int(n>>32), int(n&(phaseUnit-1))
		switch {
		case phase >= t.phases:
			return
		case unit >= t.job.Units(phase):
			t.await(phase)
			continue
		}
		t.job.Run(phase, unit)
		if t.left.Add(-1) == 0 {
			t.advance(phase)
		}
	}
}

// advance begins the phase after one whose units are done, or a later one if that has none. It is called once for a phase.
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

// await waits for the end of a phase, whose other units run on other processors at this moment.
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
