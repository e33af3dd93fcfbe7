package main

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRun: the points of both models are nearer to the distribution than a normal distribution is.
func TestRun(t *testing.T) {
	steps := 3000
	if testing.Short() {
		steps = 1500
	}
	var out strings.Builder
	d, err := run(t.Context(), "host", steps, &out)
	require.NoError(t, err)
	require.Less(t, d[1], d[0], out.String())
	require.Less(t, d[2], d[0], out.String())
	t.Log(out.String())
	_, err = run(t.Context(), "toaster", 1, &out)
	require.ErrorContains(t, err, "toaster")
}

// TestEnergy: it is small between two samples of a distribution, and grows with their distance.
func TestEnergy(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	a, b := points(r, samples), points(r, samples)
	same := energy(a, b)
	require.Less(t, same, 0.01)
	require.Less(t, same, energy(a, matched(r, samples)))
	for i := range b {
		b[i] += 3
	}
	require.Greater(t, energy(a, b), 5.0)
}
