package live

import (
	"fmt"
	"time"

	"github.com/cistern-ml/cistern/memcache"
)

// state has the figures of the index page. It is the data of events named "state". Sizes are bytes.
type state struct {
	Time time.Time `json:"time"` // of the sample
	// Since is the time of New: after a reconnect a reader may find another Handler.
	Since time.Time `json:"since"`

	Title     string `json:"title"` // of the page
	Rank      int    `json:"rank"`  // of the latest step's profile; 0 of 0 without ranks
	WorldSize int    `json:"world_size"`

	Allocated   int64            `json:"allocated"`
	Peak        int64            `json:"peak"` // of Allocated
	Reserved    int64            `json:"reserved"`
	Limit       int64            `json:"limit"`  // of Reserved; 0: the device's memory
	Graphs      int64            `json:"graphs"` // held by graphs
	Retries     int64            `json:"retries"`
	OOMs        int64            `json:"ooms"`
	Steps       int64            `json:"steps"`        // that were profiled
	Categories  []memcache.Share `json:"categories"`   // of Allocated
	GraphShares []graphShare     `json:"graph_shares"` // of Graphs
}

// state samples the cache. The categories add up to Allocated, and the shares of graphs to Graphs.
func (h *Handler) state() state {
	c := h.config.Cache
	now := c.Profile()
	stats, graphs := c.Stats(), c.GraphProfile() // after the profile, so that Peak >= Allocated
	s := state{
		Time: time.Now(), Since: h.since, Title: c.Device().Name(),
		Allocated: now.Allocated, Peak: stats.AllocatedBytes.All.Peak, Reserved: now.Reserved, Graphs: graphs.Held,
		Retries: stats.NumAllocRetries, OOMs: stats.NumOOMs, Steps: h.steps.count(),
		Categories:  append([]memcache.Share{}, now.Sum(func(h memcache.Holding) string { return h.Category.String() })...),
		GraphShares: append([]graphShare{}, graphShares(graphs)...), // [] in JSON, not null
	}
	if limit := c.MemoryLimit(); limit < c.Device().Properties().TotalMemory {
		s.Limit = limit
	}
	for _, p := range h.steps.latest(1) {
		s.Rank, s.WorldSize = p.Rank, p.WorldSize
	}
	if s.WorldSize > 0 {
		s.Title += fmt.Sprintf(", rank %d of %d", s.Rank, s.WorldSize)
	}
	s.Title += " – device memory"
	return s
}
