package main

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// childArgs is the environment variable that makes the test binary run the example with these
// arguments.
const childArgs = "CISTERN_MNIST_ARGS"

// TestSignals: a program that gets a signal ends after the current step, with its results, spans
// and metrics so far, and with the exit status of a shell.
func TestSignals(t *testing.T) {
	for _, c := range []struct {
		signal os.Signal
		status int
	}{{os.Interrupt, 130}, {syscall.SIGTERM, 143}} {
		t.Run(c.signal.String(), func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "r.json")
			args := []string{"-data", dataOf(t, 20, 10), "-batch", "2", "-epochs", "1000000", "-model", anyModel(), "-trace", "stdout", "-json", file}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0])
			cmd.Env = append(os.Environ(), childArgs+"="+strings.Join(args, "\n"))
			var out, errs strings.Builder
			cmd.Stdout = &out
			stderr, err := cmd.StderrPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			lines := bufio.NewScanner(stderr)
			for sent := false; lines.Scan(); errs.WriteString(lines.Text() + "\n") {
				if !sent && strings.HasPrefix(lines.Text(), "epoch 1/") {
					sent = true
					require.NoError(t, cmd.Process.Signal(c.signal))
				}
			}
			require.NoError(t, lines.Err())
			var exit *exec.ExitError
			require.ErrorAs(t, cmd.Wait(), &exit, "%s", errs.String())
			require.Equal(t, c.status, exit.ExitCode(), "%s", errs.String())

			s := parse(t, out.String(), errs.String())
			require.Contains(t, s.text, "interrupted after step ")
			require.Contains(t, s.text, "MaxMemoryAllocated")
			require.Regexp(t, `spans: \d+ made, \d+ sampled out .*, 0 dropped\n$`, s.text)
			root := s.named("mnist")
			require.Len(t, root, 1)
			require.Empty(t, root[0].Status.Description, "an interrupt is no error")
			require.Equal(t, true, root[0].attribute("mnist.interrupted"))
			require.Positive(t, s.usage(t), "the metrics tell how it was before everything was closed")
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Contains(t, string(text), `"interrupted": true`)
		})
	}
}

func TestExitStatus(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	require.Zero(t, exitStatus(ctx))
	require.False(t, interrupted(ctx, context.Canceled), "of something else")
	stopped := errors.New("stopped")
	cancel(stopped)
	require.Equal(t, 130, exitStatus(ctx))
	require.True(t, interrupted(ctx, ctx.Err()))
	require.True(t, interrupted(ctx, stopped))
	require.False(t, interrupted(ctx, nil))
	require.False(t, interrupted(ctx, errors.New("out of memory")))
}
