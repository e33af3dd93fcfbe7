package memcache

import (
	"fmt"

	"github.com/cistern-ml/cistern/internal/accounting"
	"github.com/cistern-ml/cistern/internal/invariants"
)

// Checks of builds with the tag invariants. In other builds invariants.Enabled is the constant
// false, and the compiler removes the checks.

// blocksPerOperation is the average number of blocks that the checks visit per operation. A cache
// with fewer blocks is checked after every operation.
const blocksPerOperation = 64

// poison is the value of the bytes of a freed block.
const poison = 0xDB

// notNegative reports a counter that fell below zero. Only the sign matters, so n may be several
// counters joined by or.
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
