package device

import (
	"sync/atomic"

	"github.com/cistern-ml/cistern/internal/race"
)

var ids atomic.Uint64

// NewID returns a number that this process has not used for a device or stream. Backends take the
// IDs of their devices and streams from it.
func NewID() uint64 {
	// Numbering must not order the goroutines that make streams.
	race.Disable()
	defer race.Enable()
	return ids.Add(1)
}
