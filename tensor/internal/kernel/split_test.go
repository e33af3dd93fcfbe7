package kernel

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSplitCoversEverythingAndWaits(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	for n := range 40 {
		for grain := range 12 {
			seen := make([]atomic.Int32, n)
			split(n, grain, func(lo, hi int) {
				if lo > 0 {
					time.Sleep(10 * time.Microsecond) // the caller has finished its own share by now
				}
				require.Less(t, lo, hi)
				for i := lo; i < hi; i++ {
					seen[i].Add(1)
				}
			})
			for i := range seen {
				require.EqualValues(t, 1, seen[i].Load(), "%d of %d, at least %d at a time", i, n, grain)
			}
		}
	}
}
