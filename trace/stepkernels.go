package trace

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// stepKernels are the kernels of a step. Guarded by KernelTimer.mu; they don't change after the
// step's end.
type stepKernels struct {
	unknown bool // some are missing
	overlap bool // launches overlapped: one's events may enclose another's kernel
	list    []*kernel
}

// beforeStart is called before a step's first event is recorded. It returns the argument of start.
// A nil KernelTimer counts no launches.
func (k *KernelTimer) beforeStart() (launches int64) {
	if k == nil {
		return -1
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.launches()
}

// start attaches to a step the kernels that are launched from now on, after its first event.
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

// beforeEnd detaches the step, before its last event is recorded. It returns the argument of end.
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

// busyTime returns the time of the kernels of a step whose last event is complete, so all its
// kernels are. took is the step's own time.
func (k *KernelTimer) busyTime(s *Step, took time.Duration) (busy time.Duration, known bool) {
	if s.kernels == nil {
		return 0, false
	}
	k.mu.Lock()
	// A copy, because the race detector does not see that Quietly is over before the list is
	// cleared.
	ran := *s.kernels
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
	return min(busy, took), true // each time is rounded
}

// giveBack returns the events of a step's kernels.
func (k *KernelTimer) giveBack(s *Step) {
	if s.kernels == nil {
		return
	}
	k.mu.Lock()
	unused := k.forget(s)
	k.mu.Unlock()
	discard(s.profiler, unused)
}

// busy returns the time in which kernels ran. If launches overlapped, it counts the union of their
// intervals.
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
