package torchsnapshot

import "github.com/cistern-ml/cistern/memcache"

// memory_viz colours the timeline by the entries' field "category", if they have it, which is also
// the source of the legend in torch.profiler's own memory timeline.

// colours is the kind of a trace's legend.
type colours uint8

const (
	coloursNone           colours = iota // no label has a category
	coloursWithoutUnknown                // all labels have one
	coloursWithUnknown
)

func colour(l memcache.Label) string {
	if l.Category == memcache.CategoryOther {
		return "unknown"
	}
	return l.Category.String()
}
