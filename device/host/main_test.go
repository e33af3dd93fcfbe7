package host

import (
	"os"
	"testing"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/leaktest"
)

// TestMain runs one scenario of race_test.go if the environment names one. The tests run this
// binary again, because a report of the race detector fails the whole process.
func TestMain(m *testing.M) {
	if name := os.Getenv(scenarioVariable); name != "" {
		runScenario(name)
		os.Exit(0)
	}
	leaktest.Main(m)
}
