package parallel_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/checkpoint"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// checkpoint returns the Checkpoint of a training of several ranks.
func (s *trainingRank) checkpoint() checkpoint.Checkpoint {
	return checkpoint.Checkpoint{Model: s.model, Optimizer: s.opt, Scheduler: s.scheduler, Init: s.in, Ranks: s.dp, State: &s.losses}
}

// resumed runs a training that saves after the 3rd step, and a second one that continues from
// there.
func resumed(c parallelTraining, path string) (first, second parallelTraining) {
	first, second = c, c
	first.steps, first.step = 4, func(s *trainingRank, k int) error {
		if k < 3 {
			return s.eager(k)
		}
		return s.checkpoint().Save(s.Ctx, path)
	}
	second.steps, second.step = c.steps+1, func(s *trainingRank, k int) error {
		switch {
		case k == 0:
			return s.checkpoint().Load(s.Ctx, path)
		case k <= 3:
			return nil
		}
		return s.eager(k - 1)
	}
	return first, second
}

// TestParallelCheckpoints: ranks continue bit for bit as if they had never stopped, with their own
// random numbers and with any sharding, and the file does not depend on the sharding.
func TestParallelCheckpoints(t *testing.T) {
	c := mlpCourse
	c.model = func(in *nn.Initializer) nn.Layer {
		return nn.Sequential{in.Linear(20, 33), in.BatchNorm(33), nn.ReLU{}, nn.Dropout{P: 0.3}, in.Linear(33, 5)}
	}
	c.steps, c.schedule = 7, optim.OneCycleLR{Max: 0.05, Steps: 20}
	c.optimizer = func(in *nn.Initializer, ps autograd.Parameters) optim.Optimizer {
		return nn.Own(in, optim.NewAdamW(ps, optim.AdamConfig{WeightDecay: new(0.1), AMSGrad: true}))
	}
	want := c.trainOn(t, cisterntest.Ranks(3))
	var file []byte
	for _, sharding := range append([]parallel.Sharding{parallel.ShardNothing}, shardings...) {
		c.cfg.Shard = sharding
		path := filepath.Join(t.TempDir(), "checkpoint")
		first, second := resumed(c, path)
		first.trainOn(t, cisterntest.Ranks(3))
		got := second.trainOn(t, cisterntest.Ranks(3))
		require.Equal(t, want.losses, got.losses, "%d", sharding)
		require.Equal(t, want.bits, got.bits, "%d", sharding)
		bytes, err := os.ReadFile(path)
		require.NoError(t, err)
		if file == nil {
			file = bytes
		}
		require.Equal(t, file, bytes, "%d", sharding)
	}
}

// TestParallelCheckpointsOfFewElements: a rank's part may be all of a parameter's state, and another
// rank's none of it.
func TestParallelCheckpointsOfFewElements(t *testing.T) {
	c := mlpCourse
	c.model = func(in *nn.Initializer) nn.Layer { return nn.Sequential{in.Linear(20, 1), in.Linear(1, 5)} }
	c.steps, c.cfg.Shard = 5, parallel.ShardState
	first, second := resumed(c, filepath.Join(t.TempDir(), "checkpoint"))
	first.trainOn(t, 2)
	require.Equal(t, c.trainOn(t, 2).bits, second.trainOn(t, 2).bits)
}

// TestParallelCheckpointsOfOtherRanks: a training continues with another number of ranks, without
// ranks, and with a state on the host.
func TestParallelCheckpointsOfOtherRanks(t *testing.T) {
	c := mlpCourse
	c.steps, c.schedule, c.alone = 7, optim.StepLR{Size: 2}, true
	want := c.trainOn(t, 1)
	c.alone, c.cfg.Shard = false, parallel.ShardGradients
	path := filepath.Join(t.TempDir(), "checkpoint")
	for _, host := range []bool{false, true} {
		if host {
			c.optimizer = func(in *nn.Initializer, ps autograd.Parameters) optim.Optimizer {
				adam := adamOf(in, ps).(*optim.Adam)
				off, err := tensor.NewOffloader(in.Runtime(), tensor.OffloadConfig{MinBytes: 1})
				in.Fail(err)
				in.Fail(offload.State(in.Context(), adam, off, 1000))
				return offloading{adam, off}
			}
		}
		first, _ := resumed(c, path)
		first.trainOn(t, cisterntest.Ranks(3))
		for n := 1; n <= cisterntest.Ranks(4); n++ {
			_, second := resumed(c, path)
			requireLossesNear(t, want.losses, second.trainOn(t, n).losses, 1e-5, fmt.Sprintf("%d ranks", n))
		}
		_, second := resumed(c, path)
		second.alone = true
		requireLossesNear(t, want.losses, second.trainOn(t, 1).losses, 1e-5, "without ranks")
	}
}

// offloading closes the offloader of its state.
type offloading struct {
	*optim.Adam
	by *tensor.Offloader
}

func (o offloading) Close() error { return errors.Join(o.Adam.Close(), o.by.Close()) }

// TestParallelCheckpointsThatFail: a Save that fails on one rank fails on all.
func TestParallelCheckpointsThatFail(t *testing.T) {
	rankGroup := tapetest.NewCrew(t, 3, 64<<20, 20*time.Second)
	folder := t.TempDir()
	path := filepath.Join(folder, "checkpoint")
	begin := time.Now()
	for n, err := range rankGroup.All(func(r *tapetest.Rank) (err error) {
		c := mlpCourse
		c.cfg.Shard = parallel.ShardState
		s, err := c.begin(r)
		defer func() { err = errors.Join(err, s.end()) }()
		if err == nil {
			err = s.eager(0)
		}
		if err != nil {
			return err
		}
		alone := s.checkpoint()
		alone.Ranks = nil
		if err := alone.Save(r.Ctx, filepath.Join(folder, fmt.Sprint(r.N))); !errors.Is(err, autograd.ErrInvalid) {
			return fmt.Errorf("a part was saved as the whole: %w", err)
		}
		missing := filepath.Join(folder, "none", "checkpoint")
		if err := s.checkpoint().Save(r.Ctx, missing); !errors.Is(err, os.ErrNotExist) == (r.N == 0) {
			return fmt.Errorf("Save: %w", err)
		} else if r.N != 0 && (!errors.Is(err, device.ErrAborted) || err.Error() != fmt.Sprintf("checkpoint: Save: rank %d of 3: writing the checkpoint: aborted: ranks [0] have failed", r.N)) {
			return fmt.Errorf("Save: %w", err)
		}
		if err := s.checkpoint().Save(r.Ctx, path); err != nil {
			return err
		}
		if r.N == 2 {
			return s.checkpoint().Load(r.Ctx, missing)
		}
		return s.checkpoint().Load(r.Ctx, path)
	}) {
		if n == 2 {
			require.ErrorIs(t, err, os.ErrNotExist)
			continue
		}
		require.ErrorIs(t, err, device.ErrAborted)
		require.ErrorContains(t, err, "loading the checkpoint: aborted: ranks [2] have failed")
	}
	require.Less(t, time.Since(begin), 15*time.Second, "nobody has waited for a timeout")
	rankGroup.Part()
}

// TestParallelCheckpointOfARankThatLeaves: the older file stays if a rank leaves while rank 0 waits
// for its part of the last tensor.
func TestParallelCheckpointOfARankThatLeaves(t *testing.T) {
	path := filepath.Join(t.TempDir(), "checkpoint")
	require.NoError(t, os.WriteFile(path, []byte("older"), 0o600))
	c := mlpCourse
	c.cfg.Shard = parallel.ShardState
	c.model = func(in *nn.Initializer) nn.Layer { return in.Linear(20, 5, nn.NoBias()) }
	c.optimizer = func(in *nn.Initializer, ps autograd.Parameters) optim.Optimizer {
		return nn.Own(in, optim.NewSGD(ps, optim.SGDConfig{Momentum: 0.9}))
	}
	ready := make(chan *trainingRank, 1)
	tapetest.NewCrew(t, 2, 64<<20, 20*time.Second).Each(func(r *tapetest.Rank) (err error) {
		s, err := c.begin(r)
		defer func() { err = errors.Join(err, s.end()) }()
		if err = errors.Join(err, s.eager(0), s.RT.Synchronize(r.Ctx), streamOf(s.dp).Synchronize(r.Ctx)); err != nil {
			return err
		}
		if r.N == 1 {
			stream := streamOf((<-ready).dp)
			cisterntest.WaitFor(t, func() bool { done, err := stream.Query(); return err == nil && !done })
			time.Sleep(20 * time.Millisecond) // the part is awaited by then
			return r.Comm.Abort()
		}
		ready <- s
		of := s.checkpoint()
		of.Init, of.Scheduler = nil, nil
		if err := of.Save(r.Ctx, path); !errors.Is(err, device.ErrAborted) {
			return fmt.Errorf("Save: %w", err)
		}
		return nil
	})
	bytes, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "older", string(bytes))
}

// TestParallelCheckpointsOneByOne: while a checkpoint of sharded state is written, each rank holds
// only its parts and one whole tensor.
func TestParallelCheckpointsOneByOne(t *testing.T) {
	const width, layers = 64, 6
	one := int64(width * width * 4)
	rankGroup := tapetest.NewCrew(t, 2, 64<<20, 20*time.Second)
	path := filepath.Join(t.TempDir(), "checkpoint")
	c := mlpCourse
	c.cfg.Shard = parallel.ShardState
	c.model = func(in *nn.Initializer) nn.Layer {
		s := nn.Sequential{in.Linear(20, width)}
		for range layers {
			s = append(s, in.Linear(width, width))
		}
		return append(s, in.Linear(width, 5))
	}
	rankGroup.Each(func(r *tapetest.Rank) error {
		s, err := c.begin(r)
		if err == nil {
			err = s.eager(0)
		}
		if err == nil {
			err = s.RT.Synchronize(r.Ctx)
		}
		if err != nil {
			return errors.Join(err, s.end())
		}
		before := r.Cache.MemoryAllocated()
		r.Cache.ResetPeakStats()
		err = s.checkpoint().Save(r.Ctx, path)
		if most := r.Cache.MaxMemoryAllocated() - before; err == nil && (most < one || most > 3*one) {
			err = fmt.Errorf("%d bytes at most above what there was, of %d tensors of %d bytes each: want the size of one, and not of two for each layer", most, 2*layers, one)
		}
		return errors.Join(err, s.end())
	})
}
