package leaktest

import (
	"testing"

	"github.com/cistern-ml/cistern/internal/opened"
)

// Device fails the test, at its end, for each handle of dev that was open when dev was closed, and
// if dev is still open.
func Device(t testing.TB, dev interface{ ID() uint64 }) {
	t.Helper()
	t.Cleanup(func() {
		t.Helper()
		left := opened.Take(dev.ID())
		if t.Failed() {
			// the cause of the test's early end left more handles
			return
		}
		for _, l := range left {
			if !endsWithOwner(l) {
				t.Error(l)
			}
		}
	})
}

// endsWithOwner reports whether l ends with its device or cache by contract, and the test itself
// opened it. The packages of the module must close theirs.
func endsWithOwner(l opened.Left) bool {
	if !l.ByTest() {
		return false
	}
	return l.Cache() || !l.Never && l.Kind == opened.Stream
}

// Excuse lets dev leave handles open, and stay open itself: for devices that a test breaks, or
// makes by the thousand.
func Excuse(dev interface{ ID() uint64 }) { opened.Excuse(dev.ID()) }
