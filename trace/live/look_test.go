package live

import (
	"testing"
	"time"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/browsertest"
	"github.com/cistern-ml/cistern/trace"
)

// TestLook: the page is readable on a desk and on a phone, in the light and the dark theme.
func TestLook(t *testing.T) {
	browsertest.Program(t)
	s := newSite(t, Config{})
	s.capture(12 * mib)
	for n := range int64(20) {
		s.Step(trace.StepProfile{Step: n, Rank: 1, WorldSize: 4, Failed: n == 5, Start: time.Now(), HostTime: time.Second, AllocatedPeak: (n + 5) << 30, AllocatedEnd: mib})
	}
	browsertest.CheckLook(t, s.server.URL+Prefix, `document.querySelectorAll("#steps tbody tr").length === 20`)
}
