package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRun learns a sentence that repeats. Its letters without their order have 2.9 nats each.
func TestRun(t *testing.T) {
	text := []byte(strings.Repeat("the quick brown fox jumps over the lazy dog. ", 400))
	var out strings.Builder
	nats, err := run(t.Context(), "host", text, 60, time.Hour, &out)
	require.NoError(t, err)
	require.Less(t, nats, 2.9, out.String())
	require.Contains(t, out.String(), "held out: ")
}
