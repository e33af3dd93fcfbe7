//go:build sanitizer

package sanitizer

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/child"
)

const runs = 20

func TestPrograms(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "program")
	out, err := exec.Command("go", "build", "-race", "-o", binary, "./program").CombinedOutput()
	require.NoError(t, err, "the programs need -race, and so a C compiler:\n%s", out)

	for _, mistake := range []string{"wait", "record"} {
		for _, form := range []string{"alone", "few", "many", "queried", "observed", "matmul"} {
			for _, twin := range []string{"mistake", "correct"} {
				t.Run(mistake+"/"+form+"/"+twin, func(t *testing.T) {
					reported := run(t, binary, mistake, form, twin)
					t.Logf("reported in %d of %d runs", reported, runs)
					if twin == "mistake" {
						require.Equal(t, runs, reported)
					} else {
						require.Zero(t, reported)
					}
				})
			}
		}
	}
}

// run counts the runs that report a data race. A run that fails in another way is an error. The
// detector's history is short: on a busy machine about one run in 500 of those with 2,000 further
// operations reports nothing. So a run without a report is repeated once, and the log shows that.
func run(t *testing.T, binary string, args ...string) (reported int) {
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		slots = make(chan struct{}, runtime.NumCPU())
	)
	for range runs {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			raced, _, err := child.Raced(exec.Command(binary, args...), 100*time.Millisecond)
			if err == nil && !raced && args[len(args)-1] == "mistake" {
				t.Log("a run without a report; once more")
				raced, _, err = child.Raced(exec.Command(binary, args...), 100*time.Millisecond)
			}
			mu.Lock()
			defer mu.Unlock()
			if raced {
				reported++
			}
			if err != nil {
				t.Errorf("%v: %v", args, err)
			}
		})
	}
	wg.Wait()
	return reported
}
