package profiledir

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStepSets(t *testing.T) {
	var s StepSet
	require.NoError(t, s.Set(" 17, 100-110,5"))
	require.Equal(t, "17,100-110,5", s.String())
	var has []int64
	for n := range int64(200) {
		if s.Has(n) {
			has = append(has, n)
		}
	}
	require.Equal(t, []int64{5, 17, 100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110}, has)
	require.NoError(t, s.Set(""))
	require.Empty(t, s)
	for _, bad := range []string{"0", "-3", "x", "7-3", "1,,2", "1-2-3", "99999999999999999999"} {
		require.ErrorContains(t, s.Set(bad), "such as 17,100-110", bad)
	}
}
