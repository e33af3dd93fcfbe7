//go:build unix

package main

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMemprofileOfOneRun: a folder that is used again has only the files of the last run, even if
// that run fails, and keeps files of other programs.
func TestMemprofileOfOneRun(t *testing.T) {
	data := dataOf(t, 128, 10)
	t.Chdir(t.TempDir())
	var out, errs bytes.Buffer
	train := func(status int, args ...string) {
		t.Helper()
		args = append([]string{"-data", data, "-epochs", "1", "-model", "tiny"}, args...)
		require.Equal(t, status, run(t.Context(), args, &out, &errs), errs.String())
	}
	require.NoError(t, os.MkdirAll("used/oom", 0o700))
	others := []string{"used/notes", "used/oom/notes", "used/step-.pb.gz", "used/step-1.pb", "used/step-one.pb.gz", "used/step-1x.pb.gz"}
	for _, name := range others {
		require.NoError(t, os.WriteFile(name, []byte("mine"), 0o600))
	}
	train(1, "-model", "mlp", "-capacity", "27MiB", "-memprofile", "used")
	require.FileExists(t, "used/oom/heap.pb.gz")
	train(0, "-batch", "8", "-memprofile", "used", "-profile-steps", "1-12")
	require.NoFileExists(t, "used/oom/heap.pb.gz")
	require.FileExists(t, "used/step-12.pb.gz")
	train(1, "-model", "mlp", "-capacity", "27MiB", "-memprofile", "new")
	train(0, "-batch", "8", "-memprofile", "new", "-profile-steps", "2")
	require.NoDirExists(t, "new/oom")
	train(0, "-batch", "8", "-memprofile", "used", "-profile-steps", "2")
	want := slices.Clone(others)
	for name := range contents(t, "new") {
		want = append(want, "used"+name[len("new"):])
	}
	require.ElementsMatch(t, want, slices.Collect(maps.Keys(contents(t, "used"))))
	for _, name := range others {
		require.Equal(t, "mine", contents(t, "used")[name])
	}
	train(1, "-device", "nonsense", "-memprofile", "used")
	require.ElementsMatch(t, append(others, "used/recording.jsonl.gz", "used/trace.json"), slices.Collect(maps.Keys(contents(t, "used"))))
}
