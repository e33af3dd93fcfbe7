package parallel_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/parallel"
)

// TestLoopOfRanks: the ranks of a Loop exchange the gradients of a step once, and take the step
// that one rank takes on all of the batches, with any sharding.
func TestLoopOfRanks(t *testing.T) {
	c := mlpCourse.brief()
	loops := make([]optim.Loop, 2)
	c.step = func(s *trainingRank, k int) error {
		l := &loops[s.N]
		if k == 0 {
			schedule, err := optim.NewScheduler(s.opt, optim.ExponentialLR{Gamma: 0.9})
			if err != nil {
				return err
			}
			*l = optim.Loop{Optimizer: s.opt, Accumulate: 3, ClipNorm: 0.5, Scheduler: schedule}
		}
		for i, tape := range s.in.Steps(3) {
			x, y, err := s.batch(3*k + i)
			if err != nil {
				return err
			}
			l.Minimize(tape, tape.CrossEntropy(s.model.Forward(tape, tape.Input(x)), y))
			tape.Fail(errors.Join(x.Release(), y.Release()))
		}
		if s.dp != nil && parallel.PassesOf(s.dp) != k+1 {
			return fmt.Errorf("%d exchanges in %d steps", parallel.PassesOf(s.dp), k+1)
		}
		return s.in.Err()
	}
	alone := c
	alone.alone = true
	want := alone.trainOn(t, 1).bits
	for _, shard := range []parallel.Sharding{parallel.ShardNothing, parallel.ShardState, parallel.ShardGradients} {
		c.cfg.Shard = shard
		got := c.trainOn(t, 2).bits
		require.Len(t, got, len(want))
		for i := range want {
			require.InDelta(t, math.Float32frombits(want[i]), math.Float32frombits(got[i]), 1e-4, "number %d, sharding %d", i, shard)
		}
	}
}
