package trace

import (
	"go.opentelemetry.io/otel/attribute"

	"github.com/cistern-ml/cistern/device"
)

// A captured operation runs inside of a graph. The graph is one launch, so the host sees no moment
// of the operation, and events that are recorded in a capture have no times. A replay therefore
// counts only the graph's operations and their bytes. They have no spans, times or numbers.

// captured counts an operation that was captured on s at each replay of its graph.
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

// replayedIn takes the operations of a step's replays, after the step has left the communicator. A
// nil Communicator has none.
func (c *Communicator) replayedIn(s *Step) []ReplayedCollective {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	replayed := s.replayed
	s.replayed = nil // operations that come later don't count
	return replayed
}

// collectiveAttributes adds the collective operations of a step's replays: three lists with one
// item per kind.
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
