package transfer_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/cistern-ml/cistern/transfer"
)

// A stale handle only compares its number: what the slab's present owner, or the pool, does with it is not looked at.
func TestWaitBesideRelease(t *testing.T) {
	r := newRig(t, transfer.Config{})
	for range 200 {
		b := r.get(t, 64)
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 3 {
				if err := b.Wait(t.Context()); err != nil && !errors.Is(err, transfer.ErrReleased) {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			if err := b.Release(); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
	}
}
