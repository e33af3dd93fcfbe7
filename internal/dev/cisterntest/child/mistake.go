package child

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The variables of a process that runs one mistake.
const (
	mistake = "CISTERN_TEST_MISTAKE"
	twin    = "CISTERN_TEST_TWIN"
)

// Mistake is the mistake that this process is for, and whether it is to run the mistake's corrected twin. Where
// [Mistakes] did not start the process for this test, the test is skipped.
func Mistake(t *testing.T) (name string, corrected bool) {
	t.Helper()
	if os.Getenv(mistake) == "" {
		t.Skip("run by child.Mistakes, in a process of its own")
	}
	return os.Getenv(mistake), os.Getenv(twin) != ""
}

// Mistakes runs the test of that name, which asks [Mistake] what to do, for each of the names and so often: the race
// detector must report every mistake, and nothing of the corrected twins, which must pass. The device is the host's:
// the detector sees no other.
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
