package replay

import (
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
)

// capturedStream is a stream in a recording of captures. The recording does not contain the
// captured work and its waits, and needs neither: if a block was free again in its capture, the
// stream had waited for it by then, and not before.
type capturedStream struct {
	*null.Stream
	m *machine
}

// CaptureMark returns the entry that completes the current free.
func (s capturedStream) CaptureMark() device.CaptureMark {
	if s.m.pools.captures == 0 {
		return nil
	}
	return captureMark{s.m, s.m.completed[s.m.freed]}
}

// captureMark is the entry of a recorded completion.
type captureMark struct {
	m         *machine
	completed int32
}

// Before reports whether the completion is in the current request.
func (c captureMark) Before(device.Stream) bool {
	r := c.m.requested
	return c.m.pools.captures > 0 && r != nil && r.From <= c.completed && c.completed < r.To
}
