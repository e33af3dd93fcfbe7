package trace

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"go.opentelemetry.io/otel/attribute"

	"github.com/cistern-ml/cistern/memcache"
)

// tell adds up the holders of the graph's memory.
func (r *StepReplay) tell() {
	held := memcache.Profile{Holdings: r.memory.Holdings}
	r.Categories = held.Sum(func(h memcache.Holding) string { return h.Category.String() })
	r.Modules = held.Sum(func(h memcache.Holding) string { return h.Module })
}

// replays returns the graphs replayed in the step, which has ended.
func (s *Step) replays() []StepReplay {
	var all []StepReplay
	for _, r := range s.scope.Replays() {
		p := StepReplay{Graph: r.Number, Count: r.Count, Held: r.Held, Allocations: r.Allocations,
			Pool: r.Pool.ID, PoolGraphs: r.Pool.Graphs.Load(), PoolReserved: r.Pool.Reserved.Load(), memory: r.GraphMemory}
		if s.tells {
			p.tell()
		}
		all = append(all, p)
	}
	return all
}

// replayAttributes adds the memory of the step's graphs: of the one that holds the most, if there
// are several.
func (p *StepProfile) replayAttributes(a []attribute.KeyValue) []attribute.KeyValue {
	if len(p.Replays) == 0 {
		return a
	}
	count, largest := int64(0), p.Replays[0]
	for _, r := range p.Replays {
		count += r.Count
		if r.Held > largest.Held {
			largest = r
		}
	}
	return append(a, KeyStepReplays.Int64(count), KeyStepReplayHeld.Int64(largest.Held),
		KeyStepReplayPoolGraphs.Int64(largest.PoolGraphs), KeyStepReplayPoolReserved.Int64(largest.PoolReserved))
}

// replays prints the memory of the graphs of the last step with replays.
func (s Summary) replays(w io.Writer) error {
	p := s.LastReplayed
	if len(p.Replays) == 0 {
		return nil
	}
	if _, err := fmt.Fprintf(w, "\nreplayed in step %s: %s allocated at the step's peak, %s held by graphs at its end\n",
		humanize.Comma(p.Step), formatBytes(p.AllocatedPeak), formatBytes(p.GraphBytes)); err != nil {
		return err
	}
	for _, r := range p.Replays {
		others := "not shared"
		if n := int(r.PoolGraphs - 1); n > 0 {
			others = fmt.Sprintf("shared with %d other %s", n, plural("graph", n))
		}
		if _, err := fmt.Fprintf(w, "  graph %d, %s blocks: %s at its peak, in private pool %[5]d of %[4]s, %[6]s\n",
			r.Graph, humanize.Comma(r.Allocations), formatBytes(r.Held), formatBytes(r.PoolReserved), r.Pool[1], others); err != nil {
			return err
		}
		out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for i, c := range r.Categories {
			if err := share(out, first(i, "by category"), c, r.Held); err != nil {
				return err
			}
		}
		for i, m := range largestModules(r.Modules) {
			if err := share(out, first(i, "largest modules"), m, r.Held); err != nil {
				return err
			}
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
	for _, c := range p.ReplayedCollectives {
		if _, err := fmt.Fprintf(w, "  %s collective %s %s of %s in its graphs, without times\n",
			humanize.Comma(c.Count), plural("operation", int(c.Count)), c.Operation, formatBytes(c.Bytes)); err != nil {
			return err
		}
	}
	return nil
}
