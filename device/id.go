package device

import (
	"sync/atomic"

	"github.com/cistern-ml/cistern/internal/race"
)

var ids atomic.Uint64

// NewID returns a number that this process has not used for a device or stream. Backends number theirs with
// it.
func NewID() uint64 {
	race.Disable() // numbering must not order the goroutines that make streams
	defer race.Enable()
	return ids.Add(1)
}
