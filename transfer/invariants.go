package transfer

import (
	"fmt"

	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache"
)

// The accounting is checked in every build, where that costs nothing to speak of: when the books go
// down, and by Stats. Builds with the tag invariants look at every slab, too, after every
// operation.

// broken reports that the accounting is wrong, which is a mistake of this package: builds with the
// tag invariants panic, others park the error. p.mu is held.
func (p *pinned) broken(err error) {
	err = fmt.Errorf("transfer: the accounting of the pool of %s is broken: %w", p.dev.Name(), err)
	if invariants.Enabled {
		panic(err)
	}
	p.park(err)
}

// check says what no statistics can be.
func (s *Stats) check() error {
	for _, c := range [...]struct {
		name string
		stat *memcache.Stat
	}{
		{"Allocations", &s.Allocations}, {"AllocatedBytes", &s.AllocatedBytes}, {"HeldBytes", &s.HeldBytes},
		{"ActiveRequests", &s.ActiveRequests}, {"ActiveBytes", &s.ActiveBytes}, {"RequestedBytes", &s.RequestedBytes},
		{"CachedBytes", &s.CachedBytes}, {"Registered", &s.Registered},
	} {
		if n := c.stat.Current; n < 0 || n > c.stat.Peak || n != c.stat.Allocated-c.stat.Freed {
			return fmt.Errorf("%s is %+v", c.name, *c.stat)
		}
	}
	if s.AllocatedBytes.Current != s.ActiveBytes.Current+s.CachedBytes.Current || s.AllocatedBytes.Current > s.HeldBytes.Current {
		return fmt.Errorf("%d bytes are allocated, %d active, %d cached and %d held", s.AllocatedBytes.Current, s.ActiveBytes.Current,
			s.CachedBytes.Current, s.HeldBytes.Current)
	}
	return nil
}
