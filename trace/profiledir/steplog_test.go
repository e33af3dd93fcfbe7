package profiledir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/trace"
)

// TestStepLogKeepsItsError: the training goes on, and Close returns the first error.
func TestStepLogKeepsItsError(t *testing.T) {
	l, err := NewStepLog(filepath.Join(t.TempDir(), "steps.jsonl"), false)
	require.NoError(t, err)
	require.NoError(t, l.file.Close())
	l.Write(trace.StepProfile{})
	l.Write(trace.StepProfile{})
	require.ErrorContains(t, l.Close(), "write ")
}

// TestStepLogLines: each line is in the file at once, a second log appends or begins anew.
func TestStepLogLines(t *testing.T) {
	name := filepath.Join(t.TempDir(), "steps.jsonl")
	for _, c := range []struct {
		goesOn bool
		want   int
	}{{true, 1}, {true, 2}, {false, 1}} {
		l, err := NewStepLog(name, c.goesOn)
		require.NoError(t, err)
		l.Write(trace.StepProfile{Step: 7})
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, c.want, strings.Count(string(text), "\n"))
		require.Contains(t, string(text), `"step":7`)
		require.NoError(t, l.Close())
		l.Write(trace.StepProfile{})
		require.NoError(t, l.Close(), "a second call")
	}
}
