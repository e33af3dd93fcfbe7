package replay

import (
	"errors"
	"slices"

	"github.com/cistern-ml/cistern/internal/budget"
)

// repair changes readings if all calls agree but the counters at the end do not. A collection, a
// flush and an empty_cache may release the same blocks. Only the counters distinguish them, in
// total instead of call by call. It changes as many readings at once as the counters differ by. If
// the replay then departs, the last change was wrong.
func (s *search) repair() error {
	wrong := make(map[reread]bool)
	s.budget = newBudget(s.p, 1) // all calls agree, so a full budget is worth it
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
			wrong[c] = true // it is not tried again
		}
		if r.distance() < s.best.distance() {
			s.best = r
		}
	}
	return s.reveal()
}

// reread is a change to another reading of a choice.
type reread struct{ step, pick int }

// reread changes as many readings as needed to match the recorded counters, except those known to
// be wrong.
func (s *search) reread(choices []choice, wrong map[reread]bool) (changed []reread) {
	retries, emptied := s.best.excess()
	for i := range choices {
		c := &choices[i]
		for pick, how := range c.readings {
			now := c.reading()
			var d, e int64 // effect of the change on retries and emptied
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

// excess returns the retries, and the calls of empty_cache, beyond the recorded numbers. The
// recording may have more of these, which left no entry.
func (r *run) excess() (retries, emptied int64) {
	want, ok := r.p.Stats["num_alloc_retries"]
	syncs, ok2 := r.p.Stats["num_sync_all_streams"]
	// they include the time before the recording
	if !ok || !ok2 || r.p.Start != nil {
		return 0, 0
	}
	return r.final.NumAllocRetries - want, r.final.NumSyncAllStreams - r.final.NumAllocRetries - (syncs - want)
}

// distance returns how far the end of a replay is from that of the recording. Missing calls of
// empty_cache do not count.
func (r *run) distance() int64 {
	retries, emptied := r.excess()
	return int64(r.addresses+r.calls+r.outcome.blocks) + max(retries, -retries) + max(0, emptied)
}

// maxHidden bounds the calls of empty_cache that left no entry.
const maxHidden = 100_000

// reveal adds calls of empty_cache that released nothing, to explain flushes that only the counters
// show.
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
