package timeline

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// call is an operation, or a launch, on the host. It has a lane of its own until it ends, so that
// arrows to kernels can begin there before its span is written.
type call struct {
	name, about string
	label       memcache.Label
	from        time.Duration
	place       int // in the group of lanes
	at          lane
}

// operations is the name of the lanes of operations and of launches outside of operations.
const operations = "operations"

// Operation observes an operation that launches kernels on s, as the hook of tensor.OnOperation.
// The operation lasts from this call until the call of the result, and the kernels that are
// launched on s meanwhile belong to it. They get the label of ctx, the name, and about, which is
// the operation's shapes or the contents of a graph. about may be nil. If operations of several
// goroutines are open on s, its kernels belong to none, because their operation is unknown.
// Operation does not block. A program that launches its own kernels calls it around them.
func (t *Timeline) Operation(ctx context.Context, s device.Stream, name string, about fmt.Stringer) (queued func()) {
	if s == nil || t.off.Load() {
		return nil
	}
	o := &call{name: name, label: memcache.LabelOf(ctx)}
	if about != nil {
		o.about = about.String()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.enter(o)
	id := s.ID()
	t.open[id] = append(t.open[id], o)
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		open := t.open[id]
		if i := slices.Index(open, o); i >= 0 {
			open = slices.Delete(open, i, i+1)
		}
		if t.open[id] = open; len(open) == 0 {
			delete(t.open, id)
		}
		t.leave(o)
		t.layers.see(t, o.label, o.from, t.now())
	}
}

// launches returns the operation of a launch on s; nil: none, or unknown.
func (t *Timeline) launches(s device.Stream) *call {
	t.mu.Lock()
	defer t.mu.Unlock()
	if open := t.open[s.ID()]; len(open) == 1 {
		return open[0]
	}
	return nil
}

// enter begins an operation. t.mu is held.
func (t *Timeline) enter(o *call) {
	o.from = t.now()
	o.place, o.at = t.lanes.of(program, operations).enter(o.from)
}

// leave ends an operation and writes it. t.mu is held.
func (t *Timeline) leave(o *call) {
	to := t.now()
	t.lanes.of(program, operations).leave(o.place, to)
	t.file.add(span{name: o.name, kind: "operation", from: o.from, to: to, args: placed(o.label)}.event(o.at))
}

// alone begins an operation for a launch outside of operations.
func (t *Timeline) alone(name string) *call {
	o := &call{name: name}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.enter(o)
	return o
}

// launched ends a launch outside of operations. A failed launch is not written.
func (t *Timeline) launched(o *call, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.leave(o)
	} else {
		t.lanes.of(program, operations).leave(o.place, o.from)
	}
}

// kernelArgs returns the arguments of a kernel that the operation launched.
func (o *call) kernelArgs(replay bool) (args []arg) {
	switch {
	case o.label == (memcache.Label{}) && o.about == "": // a launch that belongs to no operation
		return nil
	case replay:
		args = append(args, text("operations", o.about))
	default:
		args = append(args, text("operation", o.name), text("shapes", o.about))
	}
	return append(args, placed(o.label)...)
}

// placed returns the place of a label in the model and in the training: module, pass and step.
func placed(l memcache.Label) (args []arg) {
	args = moduleArg(args, l)
	if p := passOf(l); p != "" {
		args = append(args, text("pass", p))
	}
	if l.Step != 0 {
		args = append(args, number("step", l.Step))
	}
	return args
}

// moduleArg adds a label's module.
func moduleArg(args []arg, l memcache.Label) []arg {
	if l.Module == "" {
		return args
	}
	return append(args, text("module", l.Module))
}

// passOf returns "forward" or "backward"; "": the label has no pass.
func passOf(l memcache.Label) string {
	switch l.Category {
	case memcache.CategoryActivation:
		return "forward"
	case memcache.CategoryGradient:
		return "backward"
	}
	return ""
}
