package profiledir

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace/record"
)

// Step is a step of the training, for the goroutine that runs it. A nil Step does nothing.
type Step struct {
	dir    *Dir
	number int64
	mark   *record.Mark
	scope  *memcache.Scope // nil: not one of Options.Steps
	peak   memcache.Holders
}

// Step is called before step n begins, outside of its profile.
func (d *Dir) Step(n int64) *Step {
	if d == nil {
		return nil
	}
	d.timeline.SetEnabled(d.options.Steps.Has(n))
	return &Step{dir: d, number: n}
}

// Begin marks the beginning of the step in the recording. The step runs with the context that it
// returns.
func (s *Step) Begin(ctx context.Context) context.Context {
	if s == nil {
		return ctx
	}
	d := s.dir
	s.mark = d.recorder.Step(s.number)
	if d.cache == nil || !d.options.Steps.Has(s.number) {
		return ctx
	}
	d.failed(d.cache.SetHistoryStacks(memcache.StacksAll))
	ctx, s.scope = d.cache.Scope(ctx, "profiled step")
	return ctx
}

// End ends the step, before its profile ends.
func (s *Step) End() {
	if s == nil {
		return
	}
	if d := s.dir; s.scope != nil {
		_, s.peak = s.scope.EndWindow(-1)
		d.failed(d.cache.SetHistoryStacks(stacks))
		d.timeline.SetEnabled(false)
	}
	s.mark.End()
}

// Write writes the file of the step's peak, if it is one of Options.Steps. It is called after the
// step's profile has ended, so that the step's time does not include it.
func (s *Step) Write() {
	if s != nil && s.scope != nil {
		s.dir.failed(s.dir.file(fmt.Sprintf("step-%d.pb.gz", s.number), s.dir.heapAt(s.peak.Profile()).Write))
	}
}
