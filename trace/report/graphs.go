package report

import (
	"strconv"

	"github.com/cistern-ml/cistern/memcache"
)

// graphs returns the profile of the memory that graphs hold now. Owners have the graph as a tag.
func (l *labels) graphs(p memcache.GraphProfile, reserved int64) profile {
	q := profile{name: "held by graphs", graphs: p.Held, reserved: reserved}
	for _, h := range p.Holdings {
		tag := "graph=none" // the peak of no open graph
		if h.Graph > 0 {
			tag = "graph=" + strconv.FormatUint(h.Graph, 10)
		}
		if h.Tags != "" {
			tag = h.Tags + "\n" + tag
		}
		h.Tags = tag
		q.holdings = append(q.holdings, holding{owner: l.owner(h.Label, h.Stack), step: h.Step, size: h.Size, blocks: int64(h.Blocks), bytes: h.Bytes})
	}
	return q
}
