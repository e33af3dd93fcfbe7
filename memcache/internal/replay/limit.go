package replay

import (
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/memcache/internal/recording"
)

// limits are the memory limits to try, in bytes; 0 for none.
func limits(p *recording.Program, config memcache.Config) []int64 {
	if p.LimitKnown {
		return []int64{p.Limit}
	}
	return []int64{0}
}
