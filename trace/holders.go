package trace

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/memcache"
)

// To list the holders of the memory at a step's peak costs a walk over the blocks
// (memcache.Scope.EndWindow), and to add them up costs ten times as much. With a Stream the
// profiler's goroutine adds them up when the step is complete. This is done for the steps that the
// table shows, and for all with ProfilerConfig.Holders.

// endScope ends the step's scope. It keeps the holders of the memory at the peak, if the step is
// one of those that report them.
func (s *Step) endScope() memcache.Window {
	p := s.profiler
	p.mu.Lock()
	failed := s.failed
	p.mu.Unlock()
	above := p.largest.Load()
	if p.config.Holders || failed || p.told.Add(1) <= 2 {
		above = -1
	}
	var window memcache.Window
	window, s.holders = s.scope.EndWindow(above)
	peak := window.Allocated.Peak
	s.tells = peak > above
	for most := p.largest.Load(); peak > most && !failed; most = p.largest.Load() {
		if p.largest.CompareAndSwap(most, peak) {
			break
		}
	}
	return window
}

// peak adds up the holders of the memory at the step's peak; nil: the step does not report them. It
// is called once.
func (s *Step) peak() *StepPeak {
	if !s.tells {
		return nil
	}
	profile := s.holders.Profile()
	s.holders = memcache.Holders{}
	return &StepPeak{
		Categories: profile.Sum(func(h memcache.Holding) string { return h.Category.String() }),
		Modules:    profile.Sum(func(h memcache.Holding) string { return h.Module }),
		Graphs:     profile.Graphs,
		Free:       profile.Reserved - profile.Active - profile.Graphs,
	}
}

// holders prints the holders of the memory at the peak of the largest step.
func (s Summary) holders(w io.Writer) error {
	p := s.Largest
	if p.Peak == nil || p.AllocatedPeak == 0 {
		return nil
	}
	graphs := ""
	if p.Peak.Graphs > 0 {
		graphs = formatBytes(p.Peak.Graphs) + " held by graphs, "
	}
	if _, err := fmt.Fprintf(w, "\nat the peak of step %s: %s allocated, %s%s more reserved\n",
		humanize.Comma(p.Step), formatBytes(p.AllocatedPeak), graphs, formatBytes(p.Peak.Free)); err != nil {
		return err
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i, c := range p.Peak.Categories {
		if err := share(out, first(i, "by category"), c, p.AllocatedPeak); err != nil {
			return err
		}
	}
	for i, m := range largestModules(p.Peak.Modules) {
		if err := share(out, first(i, "largest modules"), m, p.AllocatedPeak); err != nil {
			return err
		}
	}
	return out.Flush()
}

// share prints a line of a list whose sum is all bytes.
func share(out io.Writer, heading string, s memcache.Share, all int64) error {
	name := s.Name
	if name == "" {
		name = "(no module)"
	}
	_, err := fmt.Fprintf(out, "  %s\t%s\t%9s\t%3.0f%%\t%s\n", heading, name, formatBytes(s.Bytes),
		100*float64(s.Bytes)/float64(all), humanize.Comma(int64(s.Blocks))+" "+plural("block", s.Blocks))
	return err
}

// largestModules returns the three largest; none if no holder has a module.
func largestModules(all []memcache.Share) []memcache.Share {
	if len(all) == 1 && all[0].Name == "" {
		return nil
	}
	return all[:min(3, len(all))]
}

// first returns the heading for the first line of a list, else "".
func first(i int, heading string) string {
	if i > 0 {
		return ""
	}
	return heading
}

func plural(word string, n int) string {
	if n == 1 {
		return word
	}
	return word + "s"
}
