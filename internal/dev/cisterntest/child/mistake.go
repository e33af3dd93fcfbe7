package child

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The environment variables of a process that runs one mistake.
const (
	mistake = "CISTERN_TEST_MISTAKE"
	twin    = "CISTERN_TEST_TWIN"
)

// Mistake returns the mistake that this process is to run, and whether to run its corrected twin
// instead. It skips the test unless [Mistakes] started the process for it.
func Mistake(t *testing.T) (name string, corrected bool) {
	t.Helper()
	if os.Getenv(mistake) == "" {
		t.Skip("run by child.Mistakes, in a process of its own")
	}
	return os.Getenv(mistake), os.Getenv(twin) != ""
}

// Mistakes runs a test, which calls [Mistake], so many times for each name. The race detector must
// report every mistake, and the corrected twins must pass without a report. The device is the host
// device, because the detector sees no other.
func Mistakes(t *testing.T, test string, names []string, times int) {
	slices.Sort(names)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			env := []string{mistake + "=" + name, "GORACE=atexit_sleep_ms=10", "CISTERN_TEST_DEVICE="}
			for range times {
				out, _ := Test("^"+test+"$", env...) // the detector's exit status is not 0
				require.Contains(t, out, "WARNING: DATA RACE", "the mistake was hidden")
				out, err := Test("^"+test+"$", append(env, twin+"=1")...)
				require.NoError(t, err, "%s", out)
				require.NotContains(t, out, "DATA RACE")
				require.Contains(t, out, "--- PASS: "+test)
			}
		})
	}
}
