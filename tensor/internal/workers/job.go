package workers

import (
	"runtime"

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
	t.begin(j, phases, helpers)
	if race.Enabled {
		t.alone(helpers)
		return
	}
	at := shared.offer(t, limit)
	defer func() { // also if a unit panics
		at.withdraw(t)
		t.finish()
		tasks.Give(t)
	}()
	t.take()
}
