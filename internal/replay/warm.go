package replay

import (
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache"
)

// What a cache had free when a recording began is not known under other options than the recorded ones. But a program that is
// recorded late usually goes on as it did before: a training repeats its steps. So if much was free at the start, the calls of
// the recording are made once before, for what they leave free.

// warmShare is the share of what was reserved at the start that has to have been free for that, as whole segments.
const warmShare = 0.1

// warms reports whether the recording began with a cache that had served requests like those that follow.
func warms(p *recording.Program) bool {
	if p.Start == nil {
		return false
	}
	var free int64
	for i := range p.Start.Segments {
		s := &p.Start.Segments[i]
		at := s.Address
		if len(s.Blocks) == 0 {
			free += s.Size
			continue
		}
		if !s.Mapped {
			continue
		}
		for _, b := range s.Blocks {
			if gap := int64(b.Address - at); gap >= sizes.LargeSegment {
				free += gap
			}
			at = b.Address
		}
	}
	return float64(free) > warmShare*float64(p.Start.Reserved())
}

// warm makes the calls of the program, frees what they leave in use, and has what was in use at the start in use again.
func (s *Scenario) warm(m *machine, skip func(*recording.Step) bool) error {
	var unused Estimate
	for i := range s.p.Steps {
		if skip(&s.p.Steps[i]) {
			continue
		}
		if err := s.step(m, &unused, i); err != nil {
			return err
		}
	}
	for block := range m.held {
		m.complete(block)
	}
	first := s.p.Start.Blocks()
	for block := first; block < len(m.blocks); block++ {
		_ = m.blocks[block].Free() // it may be free
		m.blocks[block] = memcache.Block{}
	}
	if err := m.cache.PollFrees(); err != nil {
		return err
	}
	freed := make(map[int32]bool)
	for i := range s.p.Steps {
		if st := &s.p.Steps[i]; st.Kind == recording.StepFree && int(st.Block) < first {
			freed[st.Block] = true
		}
	}
	if err := m.placeIf(func(block int32) bool { return freed[block] || m.pendingAtStart(block) }); err != nil {
		return err
	}
	m.places = places(s.p)
	m.cache.ResetPeakStats()
	m.cache.ResetAccumulatedStats()
	return nil
}
