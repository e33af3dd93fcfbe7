package diff

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/cistern-ml/cistern/internal/budget"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/internal/steplines"
)

// Bytes that are kept for a rank, a step and a holder of a peak, without its name.
const (
	rankMemory   = 1000
	stepMemory   = 150
	holderMemory = 150
)

// mostRanks is the most ranks of a file, as in trace/ranks.
const mostRanks = 4096

// steps reduces profiles of steps to a run of each rank.
func (o Options) steps(in io.Reader, name string, b *budget.Budget) ([]*run, error) {
	lines, err := steplines.New(in, b)
	if err != nil {
		return nil, err
	}
	byRank := make(map[int]*highest)
	for more := true; more; {
		more, err = lines.Next(func(p *trace.StepProfile) error {
			if p.Rank < 0 || p.Rank >= mostRanks {
				return fmt.Errorf("the rank is %d; want 0 to %d", p.Rank, mostRanks-1)
			}
			h := byRank[p.Rank]
			if h == nil {
				if err := b.Memory(rankMemory); err != nil {
					return err
				}
				h = &highest{run: run{name: name, place: p.Rank}}
				byRank[p.Rank] = h
			}
			return h.take(p, b)
		})
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", lines.Line(), err)
		}
	}
	if len(byRank) == 0 {
		return nil, errors.New("the file has no profile of a step")
	}
	var runs []*run
	for _, rank := range slices.Sorted(maps.Keys(byRank)) {
		r, err := byRank[rank].reduce()
		if err != nil {
			return nil, err
		}
		if len(byRank) > 1 {
			r.name = fmt.Sprintf("%s, rank %d", name, rank)
		}
		if lines.Cut() {
			r.notes = append(r.notes, fmt.Sprintf("%s ends in the middle of line %d", name, lines.Line()))
		}
		runs = append(runs, r)
	}
	return runs, nil
}

// highest is a rank's steps, with the holders of the step with the highest peak.
type highest struct {
	run
	seen bool
	peak *trace.StepPeak
}

// take adds a step.
func (h *highest) take(p *trace.StepProfile, b *budget.Budget) error {
	if !possible(p.AllocatedPeak, p.ReservedPeak) {
		return errFigures
	}
	if err := b.Memory(stepMemory); err != nil {
		return err
	}
	if err := h.step(p.Step, p.AllocatedPeak); err != nil {
		return err
	}
	h.reserved = max(h.reserved, p.ReservedPeak)
	if h.seen && p.AllocatedPeak <= h.allocated {
		return nil
	}
	h.seen, h.allocated = true, p.AllocatedPeak
	before := cost(h.peak)
	h.peak = p.Peak
	return b.Memory(cost(h.peak) - before)
}

// cost returns the memory of a peak, in bytes.
func cost(p *trace.StepPeak) (bytes int64) {
	if p == nil {
		return 0
	}
	for _, list := range [][]memcache.Share{p.Categories, p.Modules} {
		for _, s := range list {
			bytes += holderMemory + int64(len(s.Name))
		}
	}
	return bytes
}

// reduce computes the sums of the step with the highest peak.
func (h *highest) reduce() (*run, error) {
	r := &h.run
	r.lacks[byLine] = "profiles of steps have no call stacks"
	if h.peak == nil {
		r.lacks[byCategory] = r.name + " has no holders for the step with the highest peak; trace.ProfilerConfig.Holders records them"
		r.lacks[byModule] = r.lacks[byCategory]
		return r, nil
	}
	for _, s := range h.peak.Categories {
		if err := r.add(byCategory, key{name: s.Name}, s.Bytes, int64(s.Blocks)); err != nil {
			return nil, err
		}
	}
	for _, s := range h.peak.Modules {
		if err := r.add(byModule, key{name: memcache.ModulePath(s.Name)}, s.Bytes, int64(s.Blocks)); err != nil {
			return nil, err
		}
	}
	return r, nil
}
