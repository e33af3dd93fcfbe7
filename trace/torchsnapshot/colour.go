package torchsnapshot

import "github.com/cistern-ml/cistern/memcache"

// memory_viz colours the timeline by the entries' field "category", if there is one, which is how torch.profiler's own
// memory timeline gets its legend.

// colours says what a trace has for a legend.
type colours uint8

const (
	coloursNone           colours = iota // no label has a category
	coloursWithoutUnknown                // all have
	coloursWithUnknown
)

func colour(l memcache.Label) string {
	if l.Category == memcache.CategoryOther {
		return "unknown"
	}
	return l.Category.String()
}
