package memcache

import (
	"fmt"

	"github.com/cistern-ml/cistern/internal/invariants"
)

// What builds with the tag invariants do. In other builds invariants.Enabled is the constant false, and the
// compiler leaves all of it out.

// blocksPerOperation is how many blocks the checks look at per operation, on average: a cache with fewer is
// checked after every one.
const blocksPerOperation = 64

// poison is what the bytes of a freed block are set to.
const poison = 0xDB

// notNegative panics if a counter fell below zero.
func notNegative(name string, n int64) {
	if invariants.Enabled && n < 0 {
		panic(fmt.Sprintf("memcache: %s fell to %d", name, n))
	}
}
