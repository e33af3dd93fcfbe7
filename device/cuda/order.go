//go:build cuda

package cuda

import (
	"maps"

	"github.com/cistern-ml/cistern/device"
)

// In every replay, a captured operation runs after everything captured before it on its stream, and
// after everything that its stream has waited for. The driver keeps this as a graph, but
// cuStreamGetCaptureInfo returns only the last operations, not their order. Every record and wait
// of a capture is a call of this package, so it keeps vector clocks instead: for each stream, the
// number of operations of each stream that precede its next one. The position of a stream counts
// its own operations; captured waits don't count, because they are not operations of a graph.

// clock holds for each stream the number of operations that precede a point in a capture.
type clock map[*stream]uint64

// merge adds the operations that precede o.
func (c clock) merge(o clock) {
	for s, n := range o {
		c[s] = max(c[s], n)
	}
}

// captureMark is a point in a capture: a record of an event, or a CaptureMark.
type captureMark struct {
	capture *capture
	clock   clock
}

var _ device.CaptureOrder = (*stream)(nil)

// CaptureMark returns a mark with the stream's clock.
func (s *stream) CaptureMark() device.CaptureMark {
	if m := s.capture.Load().mark(s); m != nil {
		return m
	}
	return nil
}

// Before compares the mark's clock with the present clock of other.
func (m *captureMark) Before(other device.Stream) bool {
	s, ok := other.(*stream)
	if !ok {
		return false
	}
	now := m.capture.mark(s)
	if now == nil {
		return false
	}
	for s, n := range m.clock {
		if now.clock[s] < n {
			return false
		}
	}
	return true
}

// mark returns the present point of s. It returns nil if c is nil, has ended, or does not include
// s.
func (c *capture) mark(s *stream) *captureMark {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || s.capture.Load() != c {
		return nil
	}
	now := clock{s: s.position.queued.Load()}
	now.merge(c.waited[s])
	return &captureMark{c, now}
}

// waits records that s has waited for the operations that precede m. The caller holds the lock.
func (c *capture) waits(s *stream, m *captureMark) {
	if m == nil || m.capture != c {
		return
	}
	if c.waited[s] == nil {
		c.waited[s] = maps.Clone(m.clock)
		return
	}
	c.waited[s].merge(m.clock)
}
