package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCompare: the first line that differs is found, and a player that dies or stops early is no player that did the same.
func TestCompare(t *testing.T) {
	for _, c := range []struct{ before, now, want string }{
		{"echo one; echo ' a'; echo two; echo the end", "echo one; echo ' a'; echo two; echo the end", ""},
		{"echo one; echo ' a'; echo the end", "echo one; echo ' b'; echo the end", "line 2, call 1:\n  one\nbefore:  a\nnow:     b"},
		{"echo one; echo the end", "echo one", "line 2, call 1:\n  one\nbefore: the end\nnow:    (nothing)"},
		{"echo one", "echo one", "the players ended before their calls"},
		{"echo one; echo the end", "echo one; echo the end; exit 3", "exit status 3"},
		{"exit 0", "exit 0", "the players ended before their calls"},
		{"seq 100000; echo the end", "echo 0; seq 100000", "line 1, call 0:"},
	} {
		calls, err := compare(exec.Command("sh", "-c", c.before), exec.Command("sh", "-c", c.now))
		if c.want == "" {
			require.NoError(t, err)
			require.EqualValues(t, 3, calls)
		} else {
			require.ErrorContains(t, err, c.want)
		}
	}
}

// TestDifferenceShowsWhatCameBefore it, and no more than can be read.
func TestDifferenceShowsWhatCameBefore(t *testing.T) {
	same := strings.Repeat("a call\n thing\n", 1000)
	_, err := difference(lines(strings.NewReader(same+"x")), lines(strings.NewReader(same+"y")))
	require.ErrorContains(t, err, "line 2001, call 1000:")
	require.Equal(t, shown/2, strings.Count(err.Error(), "a call"))
}

func TestRefereeNeedsAVersion(t *testing.T) {
	require.ErrorContains(t, referee(t.Context(), [2]string{}, nil, 1, 1), "-before")
	for _, versions := range [][2]string{{"no-such-version", ""}, {"no-such-version", "another"}} {
		require.ErrorContains(t, referee(t.Context(), versions, []string{"memcache"}, 1, 1), "the version no-such-version")
	}
}
