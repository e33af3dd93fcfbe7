package host

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain runs one scenario of race_test.go, if the environment names one: the tests run this binary again, as
// a report of the race detector fails the process that it is made in.
func TestMain(m *testing.M) {
	if name := os.Getenv(scenarioVariable); name != "" {
		runScenario(name)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
