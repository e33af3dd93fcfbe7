package trace

import (
	"go.opentelemetry.io/otel/attribute"

	"github.com/cistern-ml/cistern/device"
)

// An operation that is captured runs inside of a graph, which is one launch: on the host there is no moment that is its own, and events that are recorded in a
// capture have no times. So a replay is told by what the graph has: which operations, and their bytes. They have no spans, times and numbers.

// captured lets an operation count that was captured on s, each time that its graph is replayed.
func (c *Communicator) captured(s device.ReplayNotifier, x tally) {
	f := &flight{tally: x} // once for all replays
	s.OnReplay(func() { c.replayed(f) })
}

// replayed counts an operation of a graph whose replay is queued.
func (c *Communicator) replayed(x *flight) {
	step, ctx := c.where()
	if c.tracer != nil {
		c.tracer.collectiveMetrics.record(ctx, c, x, reached{}, nil)
	}
	if step == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	name := collectiveNames[x.op]
	for i := range step.replayed {
		if r := &step.replayed[i]; r.Operation == name {
			r.Count++
			r.Bytes += x.bytes
			return
		}
	}
	step.replayed = append(step.replayed, ReplayedCollective{name, 1, x.bytes})
}

// replayedIn are the operations of a step's replays, once it has left the communicator. The nil Communicator has none.
func (c *Communicator) replayedIn(s *Step) []ReplayedCollective {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	replayed := s.replayed
	s.replayed = nil // what still comes is too late
	return replayed
}

// collectiveAttributes adds what a step's replays have of collective operations: by kind, each of the lists in the same order.
func (p *StepProfile) collectiveAttributes(a []attribute.KeyValue) []attribute.KeyValue {
	if len(p.ReplayedCollectives) == 0 {
		return a
	}
	var kinds []string
	var counts, sizes []int64
	for _, r := range p.ReplayedCollectives {
		kinds, counts, sizes = append(kinds, r.Operation), append(counts, r.Count), append(sizes, r.Bytes)
	}
	return append(a, KeyStepReplayOperations.StringSlice(kinds), KeyStepReplayCollectives.Int64Slice(counts), KeyStepReplaySizes.Int64Slice(sizes))
}
