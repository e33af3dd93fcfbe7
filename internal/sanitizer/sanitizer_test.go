//go:build sanitizer

package sanitizer

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
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

// run counts the runs that report a data race. A run that fails in another way is an error. The detector's memory is
// short: on a busy machine about one run in 500 of those with 2,000 further operations says nothing, so a mistake that a
// run does not report gets a second one, and the log says so.
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
			raced, err := once(binary, args)
			if err == nil && !raced && args[len(args)-1] == "mistake" {
				t.Log("a run without a report; once more")
				raced, err = once(binary, args)
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

// once runs the program, with the longest history that the detector has.
func once(binary string, args []string) (raced bool, err error) {
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=100 history_size=7")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 66 && strings.Contains(string(out), "DATA RACE") {
		return true, nil
	}
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, out)
	}
	return false, err
}
