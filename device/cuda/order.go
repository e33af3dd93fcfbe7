//go:build cuda

package cuda

import (
	"maps"

	"github.com/cistern-ml/cistern/device"
)

// What is captured runs, in every replay, after all that was captured before on its own stream and after all that its stream has waited for. The driver
// knows this as a graph of operations, of which it tells the last ones (cuStreamGetCaptureInfo), not who comes before whom. But every record and every wait
// of a capture is a call here, so that it is counted instead, as vector clocks: how many operations of each stream come before what a stream
// captures next. A stream's own are those that its position counts, which captured waits are not: they are no operations of a graph.

// clock is how many operations of each stream come before a place in a capture.
type clock map[*stream]uint64

// merge adds what comes before o.
func (c clock) merge(o clock) {
	for s, n := range o {
		c[s] = max(c[s], n)
	}
}

// captureMark is a place in a capture: a record of an event, or a CaptureMark.
type captureMark struct {
	capture *capture
	clock   clock
}

var _ device.CaptureOrder = (*stream)(nil)

// CaptureMark is the stream's clock.
func (s *stream) CaptureMark() device.CaptureMark {
	if m := s.capture.Load().mark(s); m != nil {
		return m
	}
	return nil
}

// Before compares clocks.
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

// mark is where s has come to; nil if the capture has ended. The nil capture has no place.
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

// waits notes that s has waited for what an event was recorded behind. The caller holds the lock.
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
