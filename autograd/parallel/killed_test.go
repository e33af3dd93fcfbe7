package parallel_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// killing is the failure of a rank, and its time.
type killing struct {
	rank, kind int
	step       int // of an error, a panic and a hang
	launch     int // that fails
}

var kinds = []string{"nothing", "an error", "a panic", "a hang", "a kernel fails", "no memory"}

// TestParallelKilledRanks: ranks are killed at random moments, and the remaining ranks end soon.
// All are restarted, as by a launcher, until the training is complete. Its result is bit-identical
// to that of a training without failures.
func TestParallelKilledRanks(t *testing.T) {
	programs := tapetest.Rounds(20, 5) // the first kills of five are of every kind
	killed := map[string]int{}
	for seed := range programs {
		r := rand.New(rand.NewPCG(uint64(seed), 18))
		c := mlpCourse
		c.steps, c.schedule = 9, optim.StepLR{Size: 4}
		shard := r.IntN(3)
		if testing.Short() {
			shard = seed % 3
		}
		c.cfg.Shard = []parallel.Sharding{parallel.ShardNothing, parallel.ShardState, parallel.ShardGradients}[shard]
		c.model = func(in *nn.Initializer) nn.Layer {
			return nn.Sequential{in.Linear(20, 33), nn.ReLU{}, nn.Dropout{P: 0.2}, in.Linear(33, 5)}
		}
		n := 2 + r.IntN(3)
		want := c.trainOn(t, n)
		path := filepath.Join(t.TempDir(), "checkpoint")
		for attempt := 0; ; attempt++ {
			require.Less(t, attempt, 12, "seed %d", seed)
			k := killing{rank: r.IntN(n), kind: r.IntN(len(kinds)), step: r.IntN(c.steps), launch: 1 + r.IntN(60)}
			if testing.Short() {
				k.kind = 1 + (seed+attempt)%(len(kinds)-1)
			}
			if attempt > tapetest.Rounds(4, 2) {
				k.kind = 0
			}
			what := fmt.Sprintf("seed %d, attempt %d: %s at rank %d of %d, step %d, launch %d, %d", seed, attempt, kinds[k.kind], k.rank, n, k.step, k.launch, c.cfg.Shard)
			if got, done := c.attempt(t, n, k, path, what); done {
				require.Equal(t, want.losses, got.losses, what)
				require.Equal(t, want.bits, got.bits, what)
				break
			}
			killed[kinds[k.kind]]++
		}
	}
	t.Log("what has ended trainings:", killed)
	require.Greater(t, len(killed), 1)
}

// attempt trains from the checkpoint on, if there is one. It reports whether the training is
// complete.
func (c parallelTraining) attempt(t *testing.T, n int, k killing, path, what string) (got record, done bool) {
	const timeout = time.Second
	rankGroup := tapetest.NewCrew(t, n, 8<<20, timeout)
	for _, r := range rankGroup.Ranks {
		r.Stack.Faulted = kinds[k.kind] == "a kernel fails"
	}
	over, left := make(chan struct{}), make(chan struct{}, n)
	go func() { // when all but the victim have ended
		for range n - 1 {
			<-left
		}
		close(over)
	}()
	own := errors.New("its own")
	all := make([]record, n)
	began := time.Now()
	errs := rankGroup.All(func(r *tapetest.Rank) (err error) {
		s, err := c.begin(r)
		defer func() {
			if p := recover(); p != nil {
				err = errors.Join(err, p.(error))
			}
			if r.N != k.rank {
				left <- struct{}{}
			}
			_ = r.Comm.Close() // it returns the error that ended it
			all[r.N].losses = s.losses
			if err == nil {
				all[r.N].bits, err = s.bits()
			}
			err = errors.Join(err, nn.ParametersOf(s.model).ZeroGrad(r.Ctx), s.end())
		}()
		if err != nil {
			return err
		}
		if err := s.checkpoint().Load(r.Ctx, path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for step := len(s.losses); step < c.steps; step++ {
			if r.N == k.rank && step == k.step {
				switch kinds[k.kind] {
				case "an error":
					return own
				case "a panic":
					panic(own)
				case "a hang":
					release := cisterntest.Hold(t, r.RT.Stream())
					go func() { <-over; release() }()
				case "a kernel fails":
					r.Dev.(*host.Device).Fail(host.FaultLaunch, k.launch)
				case "no memory":
					filler := r.Fill(k.launch % 20)
					defer func() {
						for _, b := range filler {
							_ = b.Free() // the device may have failed
						}
					}()
				}
			}
			if err := s.eager(step); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
			if step%2 == 1 {
				if err := s.checkpoint().Save(r.Ctx, path); err != nil {
					return err
				}
			}
		}
		return s.checkpoint().Save(r.Ctx, path)
	})
	require.Less(t, time.Since(began), timeout+20*time.Second, what)
	failed := errors.Join(errs...)
	if failed != nil {
		for r, err := range errs {
			if err == nil { // it ended before the failure
				require.Len(t, all[r].losses, c.steps, "%s: rank %d does not know: %v", what, r, failed)
			}
		}
		return record{}, false
	}
	for r := range all {
		require.Equal(t, all[0].bits, all[r].bits, what)
	}
	return all[0], true
}
