package timeline

import (
	"fmt"
	"time"

	"github.com/cistern-ml/cistern/device"
)

// A step's extent on the device is between two events, which are in the queue of the stream's
// kernels in the order of the launches. They are mapped to the host's times as kernels are, so that
// each kernel of a step is inside of it, however the clock is corrected.

// extent is a step on a stream.
type extent struct {
	number int64
	begun  bool // its first event was placed; guarded by the drain, like the next
	from   time.Duration
}

// Starting observes the begins and ends of a profiler's steps on their stream, as
// [trace.ProfilerConfig].Starting. It draws the extent of each step on the device, if the timeline
// was on when the step began. It does not block.
func (t *Timeline) Starting(s device.Stream, number int64) (ending func()) {
	if s == nil || t.off.Load() {
		return nil
	}
	k := &t.kernels
	c := k.clockOf(t, s)
	if c == nil {
		return nil
	}
	x := &extent{number: number}
	mark := func(name string, last bool) {
		launched := t.now()
		if e := k.mark(s); e != nil {
			l := kernel{name: fmt.Sprintf("%s of step %d", name, number), launched: launched, before: e, after: e, clock: c, step: x, last: last}
			if k.add(s, l) {
				k.drainNow(t)
			}
		}
	}
	mark("start", false)
	return func() { mark("end", true) }
}

// bound places one end of a step's extent, and writes the step at its last one.
func (t *Timeline) bound(q *queue, l kernel, r reading) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, at, _ := t.lanes.of(q.process, q.group).queued(r.from, r.from, r.own)
	x := l.step
	switch {
	case !l.last:
		x.begun, x.from = true, at
	case x.begun:
		t.span(q.process, "steps on "+q.group, span{name: fmt.Sprintf("step %d", x.number), kind: "device step", from: x.from, to: at,
			args: []arg{number("step", x.number)}})
	}
}
