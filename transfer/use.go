package transfer

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// begin announces a copy on s, and returns the copies on other streams that it has to run after: all if it
// writes the buffer, otherwise those that do. It is followed by commit or abort.
func (b *Buffer) begin(s device.Stream, writes bool) ([]*mark, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.released {
		return nil, fmt.Errorf("a buffer of %d bytes that was %w", len(b.bytes), ErrReleased)
	}
	if b.tainted {
		return nil, b.endless()
	}
	if b.queueing > 0 && (writes || b.writing) {
		return nil, fmt.Errorf("a buffer of %d bytes that another goroutine is queueing a copy of: %w", len(b.bytes), ErrInFlight)
	}
	b.queueing++
	b.writing = writes
	var earlier []*mark
	for _, u := range b.uses {
		if u.stream != s.ID() && (writes || u.wrote) {
			earlier = append(earlier, u.mark)
		}
	}
	return earlier, nil
}

// commit notes that the copy is queued and ends with m. It returns the mark that m takes the place of, if any.
func (b *Buffer) commit(m *mark, writes bool) (replaced *mark) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queueing--
	b.writing = false
	for i := range b.uses {
		if u := &b.uses[i]; u.stream == m.stream {
			u.wrote = u.wrote || writes
			if u.mark.seq > m.seq {
				return m
			}
			replaced, u.mark = u.mark, m
			return replaced
		}
	}
	b.uses = append(b.uses, use{m.stream, m, writes})
	return nil
}

// abort notes that the copy was not queued, or that it was and nothing says when it is done.
func (b *Buffer) abort(queued bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queueing--
	b.writing = false
	b.tainted = b.tainted || queued
}
