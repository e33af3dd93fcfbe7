package trace

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// stepKernels are the kernels of a step. Guarded by KernelTimer.mu; once the step is over they change no more.
type stepKernels struct {
	unknown bool // some are missing
	overlap bool // goroutines launched side by side: one's events may be around another's kernel
	list    []*kernel
}

// beforeStart is called before a step's first event is recorded. It returns what start needs. Of a nil KernelTimer nothing is known.
func (k *KernelTimer) beforeStart() (launches int64) {
	if k == nil {
		return -1
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.launches()
}

// start lets a step know the kernels that are launched from now on, after its first event.
func (k *KernelTimer) start(s *Step, launches int64) {
	if k == nil || s.from == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s.kernels = &stepKernels{unknown: launches != k.began || k.profiler.Load() != s.profiler}
	if !s.kernels.unknown {
		k.open = append(k.open, s)
	}
}

// beforeEnd ends that, before a step's last event is recorded. It returns what end needs.
func (k *KernelTimer) beforeEnd(s *Step) (launches int64) {
	if s.kernels == nil {
		return 0
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.remove(s)
	return k.launches()
}

// end is called after a step's last event.
func (k *KernelTimer) end(s *Step, launches int64) {
	if s.kernels == nil {
		return
	}
	k.mu.Lock()
	never := k.began == k.idle // perhaps the stream was not made with Launching
	if launches != k.began || never || s.to == nil {
		s.kernels.unknown = true
	}
	k.mu.Unlock()
	if s.kernels.unknown {
		k.giveBack(s)
	}
}

// busyTime is how long the kernels of a step ran whose last event is done, and so all of theirs are. The step's own time is took.
func (k *KernelTimer) busyTime(s *Step, took time.Duration) (busy time.Duration, known bool) {
	if s.kernels == nil {
		return 0, false
	}
	k.mu.Lock()
	ran := *s.kernels // the detector does not see that Quietly is over before the list goes
	k.mu.Unlock()
	if ran.unknown {
		return 0, false
	}
	p, dev := s.profiler, s.profiler.config.Cache.Device()
	busy, err := race.Quietly(func() (time.Duration, error) { return ran.busy(dev, s.from) })
	if err != nil {
		p.keep(fmt.Errorf("trace: the times of the kernels of step %d: %w", s.number, err))
		return 0, false
	}
	return min(busy, took), true // each time is rounded for itself
}

// giveBack gives the events of a step's kernels back.
func (k *KernelTimer) giveBack(s *Step) {
	if s.kernels == nil {
		return
	}
	k.mu.Lock()
	unused := k.forget(s)
	k.mu.Unlock()
	discard(s.profiler, unused)
}

// busy is the time in which kernels ran. Only where events may be around several kernels does it matter where they are.
func (t *stepKernels) busy(dev device.Device, from device.Event) (busy time.Duration, err error) {
	type span struct{ from, to time.Duration }
	var spans []span
	for _, l := range t.list {
		took, err := dev.Elapsed(l.before, l.after)
		if err != nil {
			return 0, err
		}
		if !t.overlap {
			busy += took
			continue
		}
		began, err := dev.Elapsed(from, l.before)
		if err != nil {
			return 0, err
		}
		spans = append(spans, span{began, began + took})
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var done time.Duration
	for _, s := range spans {
		busy += max(0, s.to-max(s.from, done))
		done = max(done, s.to)
	}
	return busy, nil
}
