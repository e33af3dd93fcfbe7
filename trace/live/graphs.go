package live

import (
	"fmt"

	"github.com/cistern-ml/cistern/memcache"
)

// graphs is the memory of graphs in stats and expvar. Sizes are bytes.
type graphs struct {
	Held int64   `json:"held"`           // memcache.Stats.GraphBytes
	Open []graph `json:"open,omitempty"` // in the order of their captures
}

// graph is an open graph, as captured.
type graph struct {
	Graph       uint64           `json:"graph"` // its number
	Pool        memcache.PoolID  `json:"pool"`
	Held        int64            `json:"held"` // at its peak, with blocks that are still allocated
	Allocations int64            `json:"allocations"`
	Categories  []memcache.Share `json:"categories"` // of Held
	Modules     []memcache.Share `json:"modules"`    // of Held
}

func graphsOf(c *memcache.Cache) graphs {
	p := c.GraphProfile()
	all := graphs{Held: p.Held}
	for _, m := range p.Graphs {
		held := memcache.Profile{Holdings: m.Holdings}
		all.Open = append(all.Open, graph{Graph: m.Number, Pool: m.Pool.ID, Held: m.Held, Allocations: m.Allocations,
			Categories: held.Sum(func(h memcache.Holding) string { return h.Category.String() }),
			Modules:    held.Sum(func(h memcache.Holding) string { return h.Module })})
	}
	return all
}

// graphShares returns the memory that graphs hold now, by graph and category.
func graphShares(p memcache.GraphProfile) (list []graphShare) {
	for len(p.Holdings) > 0 {
		n := 1
		for n < len(p.Holdings) && p.Holdings[n].Graph == p.Holdings[0].Graph && p.Holdings[n].Pool == p.Holdings[0].Pool {
			n++
		}
		var of memcache.Profile
		for _, h := range p.Holdings[:n] {
			of.Holdings = append(of.Holdings, h.Holding)
		}
		name := "in no open graph's peak"
		if g := p.Holdings[0].Graph; g > 0 {
			name = fmt.Sprint("graph ", g)
		}
		for _, s := range of.Sum(func(h memcache.Holding) string { return h.Category.String() }) {
			list = append(list, graphShare{name, s})
		}
		p.Holdings = p.Holdings[n:]
	}
	return list
}

// graphShare is the memory of a category that a graph holds.
type graphShare struct {
	Graph string `json:"graph"`
	memcache.Share
}
