package transfer

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// A buffer tracks, for each stream, its last copy and whether any copy there wrote it, so the
// number of entries depends on the streams, not on the copies. Two copies of one buffer on
// different streams are ordered if either writes it; copies that only read run concurrently. The
// slab's lock guards these entries and is never held during a wait.
//
// If two goroutines queue copies of one buffer at the same time and one copy writes, the second is
// refused. Their order is known only when both are recorded, and then it is too late to insert a
// wait before a copy that is already queued.

// announce announces a copy on s and returns the copies on other streams that it must run after:
// all of them if it writes the buffer, otherwise those that write it. The caller must call commit
// or abort afterwards.
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
	// The other copy has no event yet for this one to wait for.
	if sl.queueing > 0 && (writes || sl.writing) {
		return nil, fmt.Errorf("%s: another goroutine is queueing a copy of it: %w", b, ErrInFlight)
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

// commit ends the announcement of a copy that is queued and ends with end. It returns the
// completion that end replaces, if any. If another goroutine has already committed a later one on
// the stream, it returns end itself.
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

// abort ends the announcement of a copy that was not queued, or that was queued with an unknown
// end.
func (s *slab) abort(queued bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queueing--
	s.tainted = s.tainted || queued
}
