package transfer

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// begin announces a copy on s, and returns the copies on other streams that it has to run after: all if it
// writes the buffer, otherwise those that do. It is followed by commit or abort.
func (b Buffer) begin(s device.Stream, writes bool) ([]*mark, error) {
	sl := b.slab
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if err := b.stale(); err != nil {
		return nil, err
	}
	if sl.tainted {
		return nil, b.endless()
	}
	if sl.queueing > 0 && (writes || sl.writing) {
		return nil, fmt.Errorf("%s that another goroutine is queueing a copy of: %w", b, ErrInFlight)
	}
	sl.queueing++
	sl.writing = writes
	var earlier []*mark
	for _, u := range sl.uses {
		if u.stream != s.ID() && (writes || u.wrote) {
			earlier = append(earlier, u.mark)
		}
	}
	return earlier, nil
}

// commit notes that the copy is queued and ends with m. It returns the mark that m takes the place of, if any.
func (s *slab) commit(m *mark, writes bool) (replaced *mark) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queueing--
	for i := range s.uses {
		if u := &s.uses[i]; u.stream == m.stream {
			u.wrote = u.wrote || writes
			if u.mark.seq > m.seq {
				return m
			}
			replaced, u.mark = u.mark, m
			return replaced
		}
	}
	s.uses = append(s.uses, use{m.stream, m, writes})
	return nil
}

// abort notes that the copy was not queued, or that it was and nothing says when it is done.
func (s *slab) abort(queued bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queueing--
	s.tainted = s.tainted || queued
}
