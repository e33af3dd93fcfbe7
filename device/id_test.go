package device_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestNewIDIsNeverReused: no two calls return the same ID, also on concurrent goroutines. There are
// enough calls for two to meet on a busy machine.
func TestNewIDIsNeverReused(t *testing.T) {
	const goroutines, each = 8, 100_000
	lists := make(chan []uint64)
	begin := make(chan struct{})
	for range goroutines {
		go func() {
			list := make([]uint64, 0, each)
			<-begin
			for range each {
				list = append(list, device.NewID())
			}
			lists <- list
		}()
	}
	close(begin)
	var all []uint64
	for range goroutines {
		all = append(all, <-lists...)
	}
	slices.Sort(all)
	require.Len(t, slices.Compact(all), goroutines*each)
	require.NotZero(t, all[0])
}
