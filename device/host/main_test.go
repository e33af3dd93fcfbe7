package host

import (
	"os"
	"testing"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/leaktest"
)

// TestMain runs one scenario of race_test.go, if the environment names one: the tests run this binary again, as
// a report of the race detector fails the process that it is made in.
func TestMain(m *testing.M) {
	if name := os.Getenv(scenarioVariable); name != "" {
		runScenario(name)
		os.Exit(0)
	}
	leaktest.Main(m)
}
