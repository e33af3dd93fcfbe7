package replay

import (
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
)

// capturedStream is a stream in a recording of captures. What was captured on it, and what waits for what, is not recorded, and does not have to be:
// that a block was free again in its capture says that its stream had waited for it by then, and not before.
type capturedStream struct {
	*null.Stream
	m *machine
}

// CaptureMark is the entry that completes the free which is under way.
func (s capturedStream) CaptureMark() device.CaptureMark {
	if s.m.pools.captures == 0 {
		return nil
	}
	return captureMark{s.m, s.m.completed[s.m.freed]}
}

// captureMark is a recorded completion, by entry.
type captureMark struct {
	m         *machine
	completed int32
}

// Before reports whether it is in the request which is under way.
func (c captureMark) Before(device.Stream) bool {
	r := c.m.requested
	return c.m.pools.captures > 0 && r != nil && r.From <= c.completed && c.completed < r.To
}
