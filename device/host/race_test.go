package host

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/child"
	"github.com/cistern-ml/cistern/internal/race"
)

const scenarioVariable = "CISTERN_RACE_SCENARIO"

// raceRuns is the number of runs of each scenario. CISTERN_RACE_RUNS overrides it.
func raceRuns(t *testing.T) int {
	if v := os.Getenv("CISTERN_RACE_RUNS"); v != "" {
		n, err := strconv.Atoi(v)
		require.NoError(t, err)
		return n
	}
	return 2
}

// TestRaceDetectorSeesStreams runs programs with and without an ordering mistake. The detector must
// report each mistake in every run, however much work is queued between the accesses, and must
// never report the correct program.
func TestRaceDetectorSeesStreams(t *testing.T) {
	if !race.Enabled {
		t.Skip("needs -race")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	runs := raceRuns(t)
	for _, name := range scenarioNames() {
		for _, between := range []int{0, 10, 2000} {
			for _, wrong := range []bool{true, false} {
				full := fmt.Sprintf("%s/%d/%v", name, between, wrong)
				t.Run(full, func(t *testing.T) {
					t.Parallel()
					reported := 0
					for range runs {
						raced := runScenarioOnce(t, self, full, wrong)
						// On a busy machine the detector misses a race about once in some hundred
						// runs.
						if wrong && !raced {
							t.Log("a run without a report; once more")
							raced = runScenarioOnce(t, self, full, wrong)
						}
						if raced {
							reported++
						}
					}
					if wrong {
						require.Equal(t, runs, reported, "reports in %d runs", runs)
					}
				})
			}
		}
	}
}

// runScenarioOnce runs a scenario in a separate process, with the detector's longest history.
func runScenarioOnce(t *testing.T, self, full string, wrong bool) (raced bool) {
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), scenarioVariable+"="+full)
	raced, out, err := child.Raced(cmd, 0)
	require.NoError(t, err)
	require.False(t, raced && !wrong, "false report:\n%s", out)
	return raced
}
