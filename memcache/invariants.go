package memcache

import (
	"fmt"

	"github.com/cistern-ml/cistern/internal/accounting"
	"github.com/cistern-ml/cistern/internal/invariants"
)

// What only builds with the tag invariants do. In other builds invariants.Enabled is the constant false, and the
// compiler leaves all of it out.

// blocksPerOperation is how many blocks the checks look at per operation, on average: a cache with fewer is
// checked after every one.
const blocksPerOperation = 64

// poison is what the bytes of a freed block are set to.
const poison = 0xDB

// notNegative reports a counter that fell below zero. The sign is enough: n may be several counters, joined by or.
func notNegative(name string, n int64) {
	if n < 0 {
		belowZero(name, n)
	}
}

func belowZero(name string, n int64) {
	if invariants.Enabled {
		panic(fmt.Sprintf("memcache: %s fell to %d", name, n))
	}
	accounting.Broken("memcache", name, n)
}
