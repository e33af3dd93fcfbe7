package replay

import (
	"errors"
	"slices"

	"github.com/cistern-ml/cistern/internal/budget"
)

// repair changes readings where all calls agree and the counters at the end do not. A collection, a flush and an
// empty_cache may release the same blocks, and only the counters tell them apart: in total, not call by call. So many
// readings are changed at once as the counters are off; where the replay then departs, the last change was wrong.
func (s *search) repair() error {
	wrong := make(map[reread]bool)
	s.budget = newBudget(s.p, 1) // it was worth while
	for s.best.mismatches() > 0 {
		choices := slices.Clone(s.best.choices)
		changed := s.reread(choices, wrong)
		if len(changed) == 0 {
			break
		}
		r, err := s.replay(choices, true)
		if errors.Is(err, budget.ErrExceeded) {
			break
		}
		if err != nil {
			return err
		}
		if r.stopped < len(s.p.Steps) {
			last := slices.IndexFunc(changed, func(c reread) bool { return c.step > r.stopped })
			if last < 0 {
				last = len(changed)
			}
			wrong[changed[max(0, last-1)]] = true
			continue
		}
		for _, c := range changed {
			wrong[c] = true // once is enough
		}
		if r.distance() < s.best.distance() {
			s.best = r
		}
	}
	return s.reveal()
}

// reread is a choice's other reading.
type reread struct{ step, pick int }

// reread changes as many readings as bring the counters to the recording's. Those that were wrong stay.
func (s *search) reread(choices []choice, wrong map[reread]bool) (changed []reread) {
	retries, emptied := s.best.excess()
	for i := range choices {
		c := &choices[i]
		for pick, how := range c.readings {
			now := c.reading()
			var d, e int64 // what the change does to retries and emptied
			switch {
			case pick == c.pick || wrong[reread{c.step, pick}]:
				continue
			case how.empty && !now.empty:
				d, e = -c.retries, 1
			case now.empty && !how.empty:
				d, e = 1, -1
			case c.retries == 0 && how.waits():
				d = 1
			case c.retries > 0 && !how.waits():
				d = -1
			}
			helps := d*retries < 0 && (e <= 0 || emptied < 0) || e < 0 && emptied > 0
			if !helps {
				continue
			}
			retries, emptied = retries+d, emptied+e
			c.pick = pick
			changed = append(changed, reread{c.step, pick})
			break
		}
	}
	return changed
}

// excess is how many attempts more were tried again than in the recording, and how many calls of empty_cache more were made.
// The recording has more of these where they left no entry.
func (r *run) excess() (retries, emptied int64) {
	want, ok := r.p.Stats["num_alloc_retries"]
	syncs, ok2 := r.p.Stats["num_sync_all_streams"]
	if !ok || !ok2 || r.p.Start != nil { // they count what was before it, too
		return 0, 0
	}
	return r.final.NumAllocRetries - want, r.final.NumSyncAllStreams - r.final.NumAllocRetries - (syncs - want)
}

// distance is how far the end of a replay is from the end of the recording. Calls of empty_cache that are missing count
// for nothing.
func (r *run) distance() int64 {
	retries, emptied := r.excess()
	return int64(r.addresses+r.calls+r.outcome.blocks) + max(retries, -retries) + max(0, emptied)
}

// maxHidden bounds the calls of empty_cache that left no entry.
const maxHidden = 100_000

// reveal explains flushes that only the counters show by calls of empty_cache that released nothing.
func (s *search) reveal() error {
	got, want := s.best.final, s.p.Stats
	missing := want["num_sync_all_streams"] - got.NumSyncAllStreams
	if s.best.mismatches() == 0 || s.p.Start != nil || missing <= 0 || missing > maxHidden || got.NumAllocRetries != want["num_alloc_retries"] {
		return nil
	}
	s.emptied = int(missing)
	r, err := s.replay(slices.Clone(s.best.choices), true)
	if errors.Is(err, budget.ErrExceeded) {
		s.emptied = 0
		return nil
	}
	if err != nil {
		return err
	}
	if r.mismatches() < s.best.mismatches() {
		s.best = r
	} else {
		s.emptied = 0
	}
	return nil
}
