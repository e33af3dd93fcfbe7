package forecast_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/forecast"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
)

// ranked is the training of a rank. It closes its communicator after the others' steps.
//
//go:noinline
func ranked(id device.CommunicatorID, rank, ranks int, shard parallel.Sharding, all *sync.WaitGroup) forecast.Program {
	return func(ctx context.Context, rt *tensor.Runtime) (*forecast.Training, error) {
		comm, err := rt.Device().(device.Collectives).NewCommunicator(ctx, id, rank, ranks, device.CommunicatorOptions{Timeout: time.Minute})
		if err != nil {
			return nil, err
		}
		in := nn.Init(ctx, rt, nn.Seed(1))
		model := nn.Sequential{in.Linear(30, 333), nn.ReLU{}, in.Linear(333, 500), nn.ReLU{}, in.Linear(500, 10)}
		dp, err := parallel.New(ctx, comm, model, parallel.Config{BucketBytes: 300_000, Shard: shard})
		if err != nil {
			return nil, errors.Join(err, in.Close(), comm.Close())
		}
		adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
		x, y := in.Tensor(make([]float64, 20*30), 20, 30), in.Labels(make([]int, 20), 10)
		return &forecast.Training{
			Model: model,
			Step: func(ctx context.Context) error {
				tape := autograd.NewTape(ctx, rt)
				optim.Minimize(tape, tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y), adam)
				return errors.Join(tape.Close(), dp.Err())
			},
			Close: func() error {
				all.Done()
				all.Wait()
				return errors.Join(in.Close(), dp.Close(), comm.Close())
			},
		}, in.Err()
	}
}

// TestRankIsForeseen: a rank's memory in a forecast is its memory in a group of ranks.
func TestRankIsForeseen(t *testing.T) {
	const ranks = 3
	ctx := context.Background()
	for _, shard := range []parallel.Sharding{parallel.ShardNothing, parallel.ShardState, parallel.ShardGradients} {
		var runtimes [ranks]*tensor.Runtime
		var measured [ranks]*forecast.Forecast
		var errs [ranks]error
		for r := range ranks {
			var err error
			runtimes[r], err = tensor.Open("host?capacity=1GiB")
			require.NoError(t, err)
		}
		id, err := runtimes[0].Device().(device.Collectives).NewCommunicatorID()
		require.NoError(t, err)
		var all, running sync.WaitGroup
		all.Add(ranks)
		for r := range ranks {
			running.Go(func() {
				measured[r], errs[r] = forecast.Measure(ctx, runtimes[r], ranked(id, r, ranks, shard, &all))
			})
		}
		running.Wait()
		require.NoError(t, errors.Join(errs[:]...))
		for r := range ranks {
			require.NoError(t, runtimes[r].Close())
			var alone sync.WaitGroup
			alone.Add(1)
			foreseen, err := forecast.Step(ctx, "dry:host", ranked(id, r, ranks, shard, &alone))
			require.NoError(t, err)
			what := fmt.Sprintf("rank %d, shard %v", r, shard)
			require.Equal(t, measured[r].AllocatedPeak, foreseen.AllocatedPeak, what)
			require.Equal(t, measured[r].ReservedPeak, foreseen.ReservedPeak, what)
			require.Equal(t, measured[r].Step.Peak, foreseen.Step.Peak, what)
			require.Equal(t, measured[r].Lines, foreseen.Lines, what)
		}
	}
}
