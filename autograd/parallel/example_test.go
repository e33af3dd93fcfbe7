package parallel_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
)

// train trains a rank on its half of the exclusive or. It returns the last loss.
func train(ctx context.Context, env *tensor.Runtime, id device.CommunicatorID, rank, size int) (loss float64, err error) {
	comm, err := env.Device().(device.Collectives).NewCommunicator(ctx, id, rank, size, device.CommunicatorOptions{Overlapped: true})
	if err != nil {
		return 0, err
	}
	in := nn.Init(ctx, env, nn.Seed(1)) // the same first values on all ranks
	model := nn.Sequential{in.Linear(2, 16), nn.ReLU{}, in.Linear(16, 2)}
	dp, err := parallel.New(ctx, comm, model, parallel.Config{Shard: parallel.ShardState})
	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{LR: new(0.05)}))
	x := in.Tensor([][]float64{{0, 0, 0, 1}, {1, 0, 1, 1}}[rank], 2, 2)
	y := in.Labels([][]int{{0, 1}, {1, 0}}[rank], 2)
	for _, tape := range in.Steps(200) {
		l := tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y)
		optim.Minimize(tape, l, adam)
		loss = l.Item()
	}
	return loss, errors.Join(err, dp.Err(), dp.Close(), comm.Close(), in.Close())
}

// Two ranks are goroutines of one process, each with a device of its own.
func Example() {
	ctx := context.Background()
	const size = 2
	var envs [size]*tensor.Runtime
	var losses [size]float64
	var errs [size]error
	for rank := range size {
		var err error
		if envs[rank], err = tensor.Open("host"); err != nil {
			log.Fatal(err)
		}
		defer envs[rank].Close()
	}
	id, err := envs[0].Device().(device.Collectives).NewCommunicatorID()
	if err != nil {
		log.Fatal(err)
	}
	var ranks sync.WaitGroup
	for rank := range size {
		ranks.Go(func() { losses[rank], errs[rank] = train(ctx, envs[rank], id, rank, size) })
	}
	ranks.Wait()
	fmt.Println(errors.Join(errs[:]...), losses[0] < 0.01, losses[1] < 0.01)
	// Output: <nil> true true
}
