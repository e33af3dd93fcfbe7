package replay

import (
	"fmt"
	"strings"

	"github.com/cistern-ml/cistern/internal/recording"
)

// notes say what a replay rests on that the recording does not have.
func (s *search) notes() []string {
	notes := readingNotes(s.p)
	if s.config.MemoryLimit > 0 && !s.p.LimitKnown && !s.configured {
		notes = append(notes, fmt.Sprintf("the memory limit is not recorded; %d bytes fit", s.config.MemoryLimit))
	}
	if n := s.best.unclear; n > 0 && s.limit == 0 {
		notes = append(notes, fmt.Sprintf("all free segments went back to the driver before %d requests: it is read as empty_cache, and may have been"+
			" retries under a memory limit", n))
	}
	if s.emptied > 0 {
		notes = append(notes, fmt.Sprintf("%d calls of empty_cache left no entry of their own", s.emptied))
	}
	return notes
}

// missing say what could not be compared.
func (s *search) missing() (notes []string) {
	if s.p.Stats == nil {
		notes = append(notes, "the recording has no statistics to compare")
	}
	if s.p.Segments == nil {
		notes = append(notes, "the recording has no final blocks to compare")
	}
	for _, name := range s.unknown {
		notes = append(notes, fmt.Sprintf("the statistic %s is not known", name))
	}
	return notes
}

// readingNotes say what of the recording is left out, and with what it begins.
func readingNotes(p *recording.Program) []string {
	notes := append([]string{}, p.Notes...)
	notes = append(notes, OptionNotes(p)...)
	if p.Start != nil {
		notes = append(notes, startNote(p.Start))
	}
	if p.Contradiction != "" {
		notes = append(notes, "the entries and the segments at the end contradict each other: "+p.Contradiction)
	}
	if p.PrivatePools && !p.Own {
		notes = append(notes, "which requests are of a private pool follows from the memory that served them")
	}
	return notes
}

// startNote says with what the recording begins.
func startNote(s *recording.Start) string {
	note := fmt.Sprintf("the recording began late: %d blocks in %d segments of %.1f MiB were there, as follows from its end", s.Blocks(), len(s.Segments),
		float64(s.Reserved())/(1<<20))
	if s.Skipped > 0 {
		note += "; its first entry is of a call before it, so that it has lost its oldest entries (max_entries)"
	}
	return note
}

// reason is the likely one why a replay departs from the recording.
func (s *search) reason(r *run) string {
	switch {
	case s.p.Contradiction != "":
		return "entries are missing or were changed: they contradict the segments at the end"
	case strings.Contains(r.first, "out of memory is"):
		return "a memory limit or a full device that the recording does not tell"
	case s.p.Start != nil && s.config.GarbageCollectionThreshold > 0 && s.limit > 0:
		return "garbage collection, which depends on how long memory was free before the recording began"
	case r.addresses+r.calls == 0 && r.stats > 0:
		return "statistics that were reset, or that count what was before the recording"
	case s.p.PrivatePools:
		return "a private pool whose requests can't be told from others, as its memory is gone at the end"
	case s.p.Conf == "" && s.p.Settings == nil:
		return "other allocator options: the recording tells none"
	}
	return "options that were changed while the program ran, lost entries, or an allocator other than PyTorch's own of 2.0 to 2.11"
}
