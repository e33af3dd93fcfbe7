package replay

import (
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache"
)

// The free memory at the start of a late recording is unknown under other options than the recorded
// ones. A training repeats its steps. So if much memory was free at the start, the recorded calls
// run once before, and the free memory that they leave is the estimate.

// warmShare is the free share of the reserved memory, in whole segments, from which on the calls
// run once before.
const warmShare = 0.1

// warms reports whether the recording began with a warm cache.
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

// warm runs the program once, frees the blocks that it leaves live, and allocates again the initial
// blocks that it freed.
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
		_ = m.blocks[block].Free() // it may be free already
		m.blocks[block] = memcache.Block{}
	}
	if err := m.cache.PollFrees(); err != nil {
		return err
	}
	freed := make(map[int32]bool)
	for _, block := range pendingAtStart(s.p) {
		freed[block] = true
	}
	for i := range s.p.Steps {
		if st := &s.p.Steps[i]; st.Kind == recording.StepFree && int(st.Block) < first {
			freed[st.Block] = true
		}
	}
	if err := m.placeIf(func(block int32) bool { return freed[block] }); err != nil {
		return err
	}
	m.places = places(s.p)
	m.cache.ResetPeakStats()
	m.cache.ResetAccumulatedStats()
	return nil
}
