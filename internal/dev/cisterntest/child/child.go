// Package child runs tests in processes of their own: what they do ends the process, or changes it for good. The race
// detector's report of a mistake, for one, fails the test that it is made in.
package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Test runs the tests of this binary whose names match the expression in a process of its own, with more environment
// variables. It returns what they print with -test.v.
func Test(expression string, env ...string) (output string, err error) {
	out, err := Command(expression, env...).CombinedOutput()
	return string(out), err
}

// Command is Test for a process that the caller starts, and waits for or kills.
func Command(expression string, env ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run="+expression, "-test.v")
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// reported is the exit status of a process whose races were reported, whatever else its end would be.
const reported = 66

// Raced runs a program that was built with -race, with the longest history that the detector has, and says whether
// the detector reported a race. The program has so long at its end for what its goroutines still do. That it fails
// otherwise is an error.
func Raced(cmd *exec.Cmd, linger time.Duration) (raced bool, output string, err error) {
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, fmt.Sprintf("GORACE=exitcode=%d halt_on_error=0 atexit_sleep_ms=%d history_size=7",
		reported, linger.Milliseconds()))
	out, err := cmd.CombinedOutput()
	output = string(out)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == reported && strings.Contains(output, "DATA RACE") {
		return true, output, nil
	}
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, output)
	}
	return false, output, err
}
