package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/cistern-ml/cistern/autograd/checkpoint"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// point is a sample: a position, and whether it is above the diagonal.
type point struct {
	Place [2]float32
	Above int32
}

// grid is a data set of 100 points.
type grid struct{}

func (grid) Len() int { return 100 }
func (grid) At(i int) (p point, _ error) {
	p.Place = [2]float32{float32(i%10) / 10, float32(i/10) / 10}
	if p.Place[1] > p.Place[0] {
		p.Above = 1
	}
	return p, nil
}

// move is a random change of a sample.
func move(p point, r *rand.Rand) (point, error) {
	p.Place[0] += 0.02 * r.Float32()
	return p, nil
}

// check ends an example that fails.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// train takes steps of a training of two epochs, which continues at the position in the file, and
// returns the losses.
func train(ctx context.Context, file string, steps int) (losses []float64, at loader.Position) {
	env, err := tensor.Open("host")
	check(err)
	defer env.Close()
	in := nn.Init(ctx, env, nn.Seed(1))
	defer in.Close()
	model := nn.Sequential{in.Linear(2, 8), nn.ReLU{}, in.Linear(8, 2)}
	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{LR: new(0.05)}))
	data, err := loader.NewBatcher(grid{}, loader.BatcherConfig[point]{
		Sampler: loader.Sampler{Batch: 16, Shuffle: true, Seed: 1}, Transform: move,
	})
	check(err)
	l, err := loader.New(ctx, env.Pool(), loader.Config{Cache: env.Cache(), Compute: env.Stream(), Fields: data.Capacities()})
	check(err)
	defer l.Close()

	kept := checkpoint.Checkpoint{Model: model, Optimizer: adam, Init: in, State: &at}
	if err := kept.Load(ctx, file); !errors.Is(err, fs.ErrNotExist) {
		check(err)
	}
	for at.Epoch < 2 {
		for batch, err := range data.From(ctx, l, at) {
			check(err)
			n := int(batch.Bytes(1) / 4)
			x, err := env.FromBlock(batch.Field(0), tensor.Float32, n, 2)
			check(err)
			y, err := env.FromBlock(batch.Field(1), tensor.Int32, n)
			check(err)
			for _, tape := range in.Steps(1) {
				loss := tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y)
				optim.Minimize(tape, loss, adam)
				losses = append(losses, loss.Item())
			}
			check(errors.Join(in.Err(), x.Release(), y.Release()))
			at = data.Next(at)
			check(kept.Save(ctx, file))
			if len(losses) == steps {
				return losses, at // the example goes on later
			}
		}
	}
	return losses, at
}

func ExampleCheckpoint() {
	folder, _ := os.MkdirTemp("", "training")
	defer os.RemoveAll(folder)
	ctx := context.Background()
	whole, _ := train(ctx, filepath.Join(folder, "whole"), 99)
	begun, at := train(ctx, filepath.Join(folder, "parts"), 5)
	rest, _ := train(ctx, filepath.Join(folder, "parts"), 99)
	fmt.Printf("%d steps, stopped after %+v, the same losses: %v\n", len(whole), at, slices.Equal(whole, append(begun, rest...)))
	// Output:
	// 14 steps, stopped after {Epoch:0 Batch:5}, the same losses: true
}
