package transfer

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// A buffer remembers, for each stream, its last copy there and whether any copy there wrote it: as
// many entries as streams, however many copies. Two copies of one buffer on different streams are
// ordered where either writes it, as readers and writers are; copies that only read run beside each
// other. All of it is guarded by the slab's lock, which is never held across a wait.
//
// Two goroutines that queue copies of one buffer at once are refused where one of them writes:
// which copy came first is known only when both are recorded, and a wait can't be inserted behind a
// copy that is queued.

// announce announces a copy on s, and returns the copies on other streams that it has to run after:
// all if it writes the buffer, otherwise those that do. It is followed by commit or abort.
func (b Buffer) announce(s device.Stream, writes bool) ([]*completion, error) {
	sl := b.slab
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if err := b.stale(); err != nil {
		return nil, err
	}
	if sl.tainted {
		return nil, b.taintedError()
	}
	// The other copy has no event yet that this one could wait for.
	if sl.queueing > 0 && (writes || sl.writing) {
		return nil, fmt.Errorf("%s that another goroutine is queueing a copy of: %w", b, ErrInFlight)
	}
	sl.queueing++
	sl.writing = writes
	var earlier []*completion
	for _, u := range sl.uses {
		if u.stream != s.ID() && (writes || u.wrote) {
			earlier = append(earlier, u.last)
		}
	}
	return earlier, nil
}

// commit notes that the copy is queued and ends with end. It returns the completion that end takes
// the place of, if any. Another goroutine may have recorded a later one on the stream first: then
// end itself is no longer needed.
func (s *slab) commit(end *completion, writes bool) (replaced *completion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queueing--
	for i := range s.uses {
		if u := &s.uses[i]; u.stream == end.stream {
			u.wrote = u.wrote || writes
			if u.last.seq > end.seq {
				return end
			}
			replaced, u.last = u.last, end
			return replaced
		}
	}
	s.uses = append(s.uses, use{end.stream, end, writes})
	return nil
}

// abort notes that the copy was not queued, or that it was and nothing says when it is done.
func (s *slab) abort(queued bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queueing--
	s.tainted = s.tainted || queued
}
