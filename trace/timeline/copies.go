package timeline

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// Transfer returns the observer for [transfer.Config]. It serves any number of pools.
func (t *Timeline) Transfer() transfer.Observer { return copies{t} }

type copies struct{ timeline *Timeline }

func (c copies) Start(ctx context.Context, op transfer.Op) (context.Context, transfer.Operation) {
	if c.timeline.off.Load() {
		return ctx, nil
	}
	return ctx, &copying{c.timeline, memcache.LabelOf(ctx)}
}

type copying struct {
	timeline *Timeline
	label    memcache.Label
}

// End writes a copy with its time on the device, on its stream's lane, and another operation as a
// call.
func (c *copying) End(e transfer.OpInfo) {
	t := c.timeline
	from, to := t.since(e.Queued), t.now()
	if !e.Done.IsZero() {
		to = t.since(e.Done)
	}
	s := span{name: e.Op.String(), kind: "transfer", to: to, args: labelled(c.label, number("bytes", e.Bytes))}
	if e.Err != nil {
		s.name += " (failed)"
		s.args = append(s.args, text("error", e.Err.Error()))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !e.Op.Queued() || e.Stream == 0 {
		s.from = from
		t.span(program, "transfer", s)
		return
	}
	if e.Busy > 0 {
		s.args = append(s.args, number("queued for ns", max(0, to-from-e.Busy).Nanoseconds()))
		from = max(0, to-e.Busy)
	}
	at, began, ended := t.lanes.of(e.Device, fmt.Sprintf("stream %d copies", e.Stream)).queued(from, to, from)
	s.from, s.to = began, ended
	t.file.add(s.event(at))
}

// labelled appends a label's arguments.
func labelled(l memcache.Label, args ...arg) []arg {
	args = moduleArg(args, l)
	if l.Category != memcache.CategoryOther {
		args = append(args, text("category", l.Category.String()))
	}
	if l.Step != 0 {
		args = append(args, number("step", l.Step))
	}
	return args
}
