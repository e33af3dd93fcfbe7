package simd

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChoose(t *testing.T) {
	amd64 := []Level{Generic, AVX2, AVX512}
	for _, c := range []struct {
		name string
		want Level
	}{{"", AVX512}, {"generic", Generic}, {"avx2", AVX2}, {"AVX2", AVX2}, {"avx512", AVX512}} {
		l, err := choose(c.name, amd64)
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, l, c.name)
	}
	l, err := choose("neon", amd64)
	require.EqualError(t, err, `CISTERN_SIMD is "neon": this processor, in this build, runs generic, avx2, avx512`)
	require.Equal(t, AVX512, l)
	l, err = choose("avx512", amd64[:2])
	require.ErrorContains(t, err, "runs generic, avx2")
	require.Equal(t, AVX2, l)
}

func TestUse(t *testing.T) {
	before := Active()
	restore := Use(Generic)
	require.Equal(t, Generic, Active())
	restore()
	require.Equal(t, before, Active())
}

// TestForcedLevel is for .ci: the level that the environment selects must be active.
func TestForcedLevel(t *testing.T) {
	require.NoError(t, Chosen())
	require.Contains(t, Available(), Active())
	t.Logf("the level is %s", Active()) // make simd-levels reads it
}
