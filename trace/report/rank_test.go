package report

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/trace"
)

// TestParallelRankInReport: the device's name has the rank of the options, or else of the steps, if
// there are ranks.
func TestParallelRankInReport(t *testing.T) {
	s := stacktest.New(t, stacktest.Config{Device: cisterntest.Host(t, 1<<20)})
	steps := []trace.StepProfile{{Step: 1, Rank: 1, WorldSize: 3}}
	for _, c := range []struct {
		steps []trace.StepProfile
		o     Options
		want  string
	}{
		{nil, Options{}, "host"},
		{[]trace.StepProfile{{Step: 1}}, Options{}, "host"},
		{steps, Options{}, "host, rank 1 of 3"},
		{steps, Options{Rank: 2, WorldSize: 4}, "host, rank 2 of 4"},
		{nil, Options{Rank: 0, WorldSize: 2}, "host, rank 0 of 2"},
	} {
		r, err := FromCache(s.Cache, c.steps, c.o)
		require.NoError(t, err)
		assert.Equal(t, c.want, r.account.device)
	}
}
