package replay

import (
	"fmt"
	"strings"

	"github.com/cistern-ml/cistern/internal/recording"
)

// notes lists the assumptions of a replay.
func (s *search) notes() []string {
	notes := readingNotes(s.p)
	if s.config.MemoryLimit > 0 && !s.p.LimitKnown && !s.configured {
		notes = append(notes, fmt.Sprintf("the memory limit is not recorded; %d bytes fit", s.config.MemoryLimit))
	}
	if n := s.best.unclear; n > 0 && s.limit == 0 {
		notes = append(notes, fmt.Sprintf("all free segments were released just before %d requests: read as empty_cache, but it could be retries under a"+
			" memory limit", n))
	}
	if s.emptied > 0 {
		notes = append(notes, fmt.Sprintf("%d calls of empty_cache left no entry of their own", s.emptied))
	}
	return notes
}

// missing lists what could not be compared.
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

// readingNotes lists the parts of a file that were skipped or reconstructed.
func readingNotes(p *recording.Program) []string {
	notes := append([]string{}, p.Notes...)
	notes = append(notes, optionNotes(p)...)
	if p.Start != nil {
		notes = append(notes, startNote(p.Start))
	}
	if p.Contradiction != "" {
		notes = append(notes, "the entries contradict the final segments: "+p.Contradiction)
	}
	if p.PrivatePools && !p.Own {
		notes = append(notes, "requests are assigned to private pools by the memory that served them")
	}
	return notes
}

// startNote describes the start of a late recording.
func startNote(s *recording.Start) string {
	note := fmt.Sprintf("the recording began late: %d blocks in %d segments (%.1f MiB) existed before, reconstructed from the final segments", s.Blocks(), len(s.Segments),
		float64(s.Reserved())/(1<<20))
	if s.Skipped > 0 {
		note += "; its first entry completes an earlier free (the oldest entries may be lost: max_entries)"
	}
	return note
}

// reason returns the likely reason why a replay departs from its recording.
func (s *search) reason(r *run) string {
	switch {
	case s.p.Contradiction != "":
		return "entries are missing or were altered: they contradict the final segments"
	case strings.Contains(r.first, "out of memory is"):
		return "a memory limit or a full device that is not recorded"
	case s.p.Start != nil && s.config.GarbageCollectionThreshold > 0 && s.limit > 0:
		return "garbage collection, which depends on the age of memory that was free before the recording began"
	case r.addresses+r.calls == 0 && r.stats > 0:
		return "statistics that were reset, or that include what happened before the recording"
	case s.p.PrivatePools:
		return "a private pool that no longer exists, so that its requests can't be told apart"
	case s.p.Conf == "" && s.p.Settings == nil:
		return "other allocator options: none are recorded"
	}
	return "options that changed at run time, lost entries, or an allocator other than the native one of PyTorch 2.0 to 2.11"
}
