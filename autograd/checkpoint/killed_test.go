package checkpoint_test

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/child"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

var kills = flag.Int("checkpoint.kills", 0, "how often TestKilledTraining kills; 0: 5, with -short 2")

const (
	killedPath  = "CISTERN_TEST_CHECKPOINT"
	killedSteps = "CISTERN_TEST_CHECKPOINT_STEPS"
)

// TestTrainingToBeKilled is the training of TestKilledTraining in its own process: it continues
// from the checkpoint, if there is one, and saves one after every step.
func TestTrainingToBeKilled(t *testing.T) {
	path := os.Getenv(killedPath)
	if path == "" {
		t.Skip("run by TestKilledTraining, in a process of its own")
	}
	steps, err := strconv.Atoi(os.Getenv(killedSteps))
	require.NoError(t, err)
	b := tapetest.Open(t, 64<<20)
	tr := newTraining(b, 1, "Adam", steps)
	defer tr.close()
	if err := tr.checkpoint().Load(b.Ctx, path); !errors.Is(err, fs.ErrNotExist) {
		require.NoError(t, err)
	}
	for tr.at.Step < steps {
		tr.step()
		require.NoError(t, tr.checkpoint().Save(b.Ctx, path))
	}
}

// TestKilledTraining: a training that is killed at random moments, during a step or a Save, and
// continues each time, ends bit for bit like one that is never killed.
func TestKilledTraining(t *testing.T) {
	cisterntest.OnlyHost(t, tapetest.Open(t, 64<<20).Dev, "a process that is killed gives its GPU back late")
	n := *kills
	switch {
	case n > 0:
	case testing.Short():
		n = 2
	default:
		n = 5
	}
	steps := strconv.Itoa(25 * n)
	folder := t.TempDir()
	alone, killed := filepath.Join(folder, "alone"), filepath.Join(folder, "killed")
	command := func(path string) *exec.Cmd {
		return child.Command("^TestTrainingToBeKilled$", killedPath+"="+path, killedSteps+"="+steps, "CISTERN_TEST_DEVICE=")
	}
	out, err := command(alone).CombinedOutput()
	require.NoError(t, err, "%s", out)

	for count := 0; count < n; {
		var out bytes.Buffer
		cmd := command(killed)
		cmd.Stdout, cmd.Stderr = &out, &out
		require.NoError(t, cmd.Start())
		end := time.AfterFunc(time.Duration(rand.IntN(100_000))*time.Microsecond, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		end.Stop()
		if err == nil { // it was complete: repeat it from the beginning
			require.NoError(t, os.Remove(killed))
			continue
		}
		require.Equal(t, -1, cmd.ProcessState.ExitCode(), "it failed: %s", out.String())
		count++
	}
	out, err = command(killed).CombinedOutput()
	require.NoError(t, err, "%s", out)
	a, err := os.ReadFile(alone)
	require.NoError(t, err)
	b, err := os.ReadFile(killed)
	require.NoError(t, err)
	require.True(t, bytes.Equal(a, b), "the checkpoints differ")
}
