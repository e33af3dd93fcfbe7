package parallel_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/rendezvous"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// BenchmarkParallel measures one training step of an MLP 784-width-width-10 with Adam. The data is
// already on the devices, which are those of up to 8 ranks in CISTERN_TEST_RANKS, or two host
// devices. rows is the number of rows on each rank. If a launcher such as torchrun has started the
// processes, each is one rank, and -test.benchtime is a number of steps. "alone" are ranks that
// train at the same time without an exchange. The host does not wait after a step; the time
// includes the end of the last one. KiB-at-most-N is the peak of allocated memory on rank N of this
// process, with workspaces but without NCCL's own memory.
func BenchmarkParallel(b *testing.B) {
	rankGroup := benchCrew(b) // once, because NCCL takes seconds to join ranks
	defer rankGroup.Part()
	for _, size := range []struct{ width, rows int }{{512, 128}, {512, 1024}, {4096, 1024}} {
		for _, how := range []struct {
			name  string
			alone bool
			shard parallel.Sharding
		}{{"alone", true, parallel.ShardNothing}, {"ranks", false, parallel.ShardNothing}, {"ranks-state", false, parallel.ShardState}, {"ranks-gradients", false, parallel.ShardGradients}} {
			for _, replays := range []bool{false, true} {
				name := fmt.Sprintf("width%d/rows%d/%s/%s", size.width, size.rows, how.name, map[bool]string{false: "called", true: "captured"}[replays])
				b.Run(name, func(b *testing.B) {
					c := parallelTraining{input: []int{784}, classes: 10, cfg: parallel.Config{Shard: how.shard}, alone: how.alone, prepare: true,
						model: func(in *nn.Initializer) nn.Layer {
							return nn.Sequential{in.Linear(784, size.width), nn.ReLU{}, in.Linear(size.width, size.width), nn.ReLU{}, in.Linear(size.width, 10)}
						},
						optimizer: func(in *nn.Initializer, ps autograd.Parameters) optim.Optimizer {
							return nn.Own(in, optim.NewAdam(ps, optim.AdamConfig{LR: new(1e-3)}))
						}}
					c.batch = rankGroup.Ranks[0].Size * size.rows
					c.time(b, rankGroup, replays)
				})
			}
		}
	}
}

// benchCrew are the ranks of this process.
func benchCrew(b *testing.B) *tapetest.Crew {
	const capacity, timeout = 4 << 30, time.Minute
	env, err := rendezvous.FromEnvironment()
	require.NoError(b, err)
	if env.Size > 1 {
		r := tapetest.NewRank(b, env.LocalRank, env.Rank, env.Size, capacity)
		ctx, cancel := context.WithTimeout(r.Ctx, timeout)
		defer cancel()
		r.Comm, err = rendezvous.Join(ctx, env, r.Dev, device.CommunicatorOptions{Timeout: timeout, Overlapped: true})
		require.NoError(b, err)
		return &tapetest.Crew{T: b, Ranks: []*tapetest.Rank{r}}
	}
	const unnamed = 1 << 20
	ranks := cisterntest.Ranks(unnamed)
	if ranks == unnamed {
		ranks = 2
	}
	return tapetest.NewCrew(b, min(ranks, 8), capacity, timeout)
}

// time runs steps on the ranks.
func (c parallelTraining) time(b *testing.B, rankGroup *tapetest.Crew, captured bool) {
	rankGroup.T = b
	size := rankGroup.Ranks[0].Size
	steps := make([]func() error, size)
	ranks := make([]*trainingRank, size)
	rankGroup.Each(func(r *tapetest.Rank) (err error) {
		s, err := c.begin(r)
		ranks[r.N] = s
		if err != nil {
			return err
		}
		if s.x, s.y, err = s.batch(0); err != nil {
			return err
		}
		called := func(ctx context.Context) error {
			tape := autograd.NewTape(ctx, s.RT)
			_, err := tape.Backward(tape.CrossEntropy(s.model.Forward(tape, tape.Input(s.x)), s.y))
			return errors.Join(err, s.opt.Step(ctx), s.opt.ZeroGrad(ctx), tape.Close())
		}
		steps[r.N] = func() error { return called(s.Ctx) }
		for range 3 {
			err = errors.Join(err, called(s.Ctx))
		}
		if captured && err == nil {
			if err = s.Cache.EmptyCache(s.Ctx); err == nil { // outside of the graph's pool
				s.graph, err = s.RT.Capture(s.Ctx, called)
			}
			steps[r.N] = func() error { return s.graph.Replay(s.Ctx) }
			if err == nil {
				err = steps[r.N]()
			}
		}
		err = errors.Join(err, s.RT.Synchronize(s.Ctx))
		s.Cache.ResetPeakStats()
		return err
	})
	b.ReportAllocs()
	b.ResetTimer()
	rankGroup.Each(func(r *tapetest.Rank) error {
		for range b.N {
			if err := steps[r.N](); err != nil {
				return err
			}
		}
		return r.RT.Synchronize(r.Ctx)
	})
	b.StopTimer()
	for _, r := range rankGroup.Ranks {
		b.ReportMetric(float64(r.Cache.MaxMemoryAllocated())/(1<<10), fmt.Sprint("KiB-at-most-", r.N))
	}
	rankGroup.Each(func(r *tapetest.Rank) error {
		return errors.Join(r.Comm.AsyncError(), ranks[r.N].end(), r.Cache.EmptyCache(r.Ctx))
	})
}
