// Package child runs tests in child processes, because they end the process or change it for good.
// For example, the race detector's report of a mistake fails the test in which it is made.
package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Test runs the tests of this binary whose names match the expression in a child process with
// additional environment variables. It returns their output with -test.v.
func Test(expression string, env ...string) (output string, err error) {
	out, err := Command(expression, env...).CombinedOutput()
	return string(out), err
}

// Command returns the command of Test, for a process that the caller starts, and waits for or
// kills.
func Command(expression string, env ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run="+expression, "-test.v")
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// reported is the exit status of a process with reported races, which replaces any other.
const reported = 66

// Raced runs a program that was built with -race, with the detector's longest history, and reports
// whether the detector reported a race. The program lingers at its end for goroutines that are
// still running. Any other failure is an error.
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
