package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cistern-ml/cistern/autograd/checkpoint"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/tensor"
)

// trainUntil takes 100 steps, or fewer if ctx ends, and keeps the training in a file, from which the
// next call continues. It returns the number of steps so far and the last loss.
func trainUntil(ctx context.Context, file string, each func(step int)) (step int, loss float64, err error) {
	env, err := tensor.Open("host")
	if err != nil {
		return 0, 0, err
	}
	in := nn.Init(ctx, env, nn.Seed(1))
	x := in.Tensor([]float64{0, 0, 0, 1, 1, 0, 1, 1}, 4, 2)
	y := in.Labels([]int{0, 1, 1, 0}, 2)
	model := nn.Sequential{in.Linear(2, 16), nn.ReLU{}, in.Linear(16, 2)}
	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{LR: new(0.05)}))

	kept := checkpoint.Checkpoint{Model: model, Optimizer: adam, Init: in, State: &step}
	if err := kept.Load(ctx, file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, 0, errors.Join(err, in.Close(), env.Close())
	}
	for _, tape := range in.Steps(100 - step) { // ends early when ctx ends
		l := tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y)
		optim.Minimize(tape, l, adam)
		loss = l.Item()
		step++
		each(step)
	}
	if err := in.Err(); err == nil || errors.Is(err, context.Canceled) {
		err = kept.Save(context.WithoutCancel(ctx), file) // ctx may have ended
		return step, loss, errors.Join(err, ignoreCanceled(in.Close()), env.Close())
	}
	return step, loss, errors.Join(in.Close(), env.Close())
}

// ignoreCanceled returns err unless it is the end of the context, which Close of an initialiser
// returns too.
func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// Example_interrupt stops a training after 30 steps and continues it. A program gets the context
// from signal.NotifyContext(context.Background(), os.Interrupt).
func Example_interrupt() {
	folder, _ := os.MkdirTemp("", "training")
	defer os.RemoveAll(folder)
	_, want, err := trainUntil(context.Background(), filepath.Join(folder, "whole"), func(int) {})
	fmt.Println(err)

	file := filepath.Join(folder, "parts")
	ctx, interrupt := context.WithCancel(context.Background())
	step, _, err := trainUntil(ctx, file, func(step int) {
		if step == 30 {
			interrupt()
		}
	})
	fmt.Println(step, err)
	step, loss, err := trainUntil(context.Background(), file, func(int) {})
	fmt.Println(step, err, "the same loss:", loss == want)
	// Output:
	// <nil>
	// 30 <nil>
	// 100 <nil> the same loss: true
}
