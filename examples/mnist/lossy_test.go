package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The tests of this file run the program in its own process and check its exit status. They run in
// parallel, because each waits for seconds until the program gives up sending.

// patience is the time within which a program that can't send its telemetry must end: far more than
// sending may take.
const patience = time.Minute

// child starts the program.
func child(t *testing.T, environment map[string]string, args ...string) (cmd *exec.Cmd, stdout io.Reader, stderr *strings.Builder) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childArgs+"="+strings.Join(args, "\n"))
	for name, value := range environment {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	stderr = new(strings.Builder)
	cmd.Stderr = stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return cmd, stdout, stderr
}

// status waits for the program and returns its exit status; -1: it had to be killed.
func status(t *testing.T, cmd *exec.Cmd) int {
	_ = cmd.Wait() // an exit status other than 0 is an error
	return cmd.ProcessState.ExitCode()
}

// TestCollectorThatDies: the training continues without its collector, has the same result, and
// reports the losses. Nothing that did not arrive counts as sent.
func TestCollectorThatDies(t *testing.T) {
	t.Parallel()
	for _, protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t, protocol)
			environment := r.environment(protocol)
			environment["OTEL_BSP_SCHEDULE_DELAY"] = "20" // ms
			cmd, stdout, stderr := child(t, environment, "-data", small(t), "-batch", "2", "-epochs", "1000000", "-trace", "otlp")
			var out strings.Builder
			lines, epochs := bufio.NewScanner(stdout), 0
			for lines.Scan() {
				out.WriteString(lines.Text() + "\n")
				if !strings.HasPrefix(lines.Text(), "epoch ") {
					continue
				}
				switch epochs++; epochs {
				case 1:
					<-r.got
					r.kill()
				case 3: // two epochs without it
					require.NoError(t, cmd.Process.Signal(os.Interrupt))
				}
			}
			require.Equal(t, 130, status(t, cmd), stderr.String())
			require.Empty(t, stderr.String())
			made, dropped := spansMade(t, out.String()), spansDropped(t, out.String())
			require.Positive(t, dropped)
			require.NotEmpty(t, r.tracers())
			require.GreaterOrEqual(t, len(r.tracers()), made-dropped, "what did not arrive was not sent")
			require.Contains(t, out.String(), "the exporter failed ")
			require.Contains(t, out.String(), "the last metrics were not sent: ")
		})
	}
}

// TestBlackHole: a program ends although its collector accepts everything and never answers. The
// data counts as not sent. The exit status is that of the training: done, failed, or ended by a
// signal.
func TestBlackHole(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args     []string
		pictures int
		signal   os.Signal
		status   int
	}{
		"done":     {[]string{"-epochs", "1"}, 20, nil, 0},
		"failed":   {[]string{"-capacity", "27MiB", "-batch", "128"}, 128, nil, 1},
		"signaled": {[]string{"-epochs", "1000000"}, 20, syscall.SIGTERM, 143},
	} {
		for _, protocol := range protocols {
			if testing.Short() && (protocol == "grpc") != (name != "failed") { // each case, and each protocol
				continue
			}
			t.Run(name+"/"+protocol, func(t *testing.T) {
				t.Parallel()
				environment := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": blackHole(t), "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
				args := append([]string{"-data", dataOf(t, c.pictures, 10), "-batch", "2", "-trace", "otlp"}, c.args...)
				cmd, stdout, stderr := child(t, environment, args...)
				var out strings.Builder
				for lines := bufio.NewScanner(stdout); lines.Scan(); {
					out.WriteString(lines.Text() + "\n")
					if c.signal != nil && strings.HasPrefix(lines.Text(), "epoch 1/") {
						require.NoError(t, cmd.Process.Signal(c.signal))
					}
				}
				require.Equal(t, c.status, status(t, cmd), stderr.String())
				made := spansMade(t, out.String())
				require.Positive(t, made)
				require.Equal(t, made, spansDropped(t, out.String()), out.String())
				require.Contains(t, out.String(), "the exporter failed ")
				require.Contains(t, out.String(), "the last metrics were not sent: ")
				if c.status == 1 {
					require.Contains(t, out.String(), "log records: 1 made, 1 dropped\n")
					require.Contains(t, stderr.String(), "out of memory")
				}
			})
		}
	}
}
