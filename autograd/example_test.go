package autograd_test

import (
	"context"
	"fmt"
	"log"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/transfer"
)

// A model of two layers learns exclusive or.
func Example() {
	ctx := context.Background()
	dev, err := device.Open("host")
	check(err)
	defer dev.Close()
	cache, err := memcache.New(dev, memcache.Config{})
	check(err)
	defer cache.Close()
	pool, err := transfer.New(dev, transfer.Config{})
	check(err)
	defer pool.Close()
	stream, err := dev.NewStream(device.StreamOptions{})
	check(err)
	defer stream.Close()
	rt, err := tensor.NewRuntime(cache, pool, stream)
	check(err)
	defer rt.Close()

	random := autograd.NewRand(1)
	hidden, err := autograd.NewLinear(ctx, rt, gtensor.Float32, 2, 16, random)
	check(err)
	output, err := autograd.NewLinear(ctx, rt, gtensor.Float32, 16, 2, random)
	check(err)
	model := autograd.Sequential{hidden, autograd.ReLU{}, output}
	defer model.Parameters().Release()
	opt, err := autograd.NewAdam(model.Parameters(), autograd.AdamConfig{LR: new(0.05)})
	check(err)
	defer opt.Close()

	x, err := tensor.FromSlice(ctx, rt, []float32{0, 0, 0, 1, 1, 0, 1, 1}, 4, 2)
	check(err)
	defer x.Release()
	y, err := tensor.Labels(ctx, rt, []int{0, 1, 1, 0}, 2)
	check(err)
	defer y.Release()

	for range 100 {
		check(opt.ZeroGrad(ctx))
		tape := autograd.NewTape(ctx, rt)
		_, err := tape.Backward(tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y))
		check(err)
		check(opt.Step(ctx))
		check(tape.Close())
	}

	tape := autograd.NoGrad(ctx, rt)
	defer tape.Close()
	logits := model.Forward(tape, tape.Input(x))
	check(tape.Err())
	best, err := rt.ArgMax(ctx, logits.Value())
	check(err)
	defer best.Release()
	answers, err := tensor.ToSlice[int32](ctx, best, nil)
	check(err)
	fmt.Println(answers)
	// Output: [0 1 1 0]
}

// Gradients of any expression: d/dx of sum(x² tanh(x)).
func ExampleTape_Leaf() {
	rt, done := runtime()
	defer done()
	ctx, life := tensor.WithLifetime(context.Background())
	defer life.Close()

	value, err := tensor.FromSlice(ctx, rt, []float64{0, 1, 2})
	check(err)
	tape := autograd.NewTape(ctx, rt)
	defer tape.Close()
	x := tape.Leaf(value)
	_, err = tape.Backward(tape.Sum(tape.Mul(tape.Square(x), tape.Tanh(x))))
	check(err)
	slope, err := tensor.ToSlice[float64](ctx, x.Grad(), nil)
	check(err)
	fmt.Printf("%.4f\n", slope)
	// Output: [0.0000 1.9432 4.1387]
}

// runtime is a runtime on the host device, and what ends it.
func runtime() (*tensor.Runtime, func()) {
	dev, err := device.Open("host")
	check(err)
	cache, err := memcache.New(dev, memcache.Config{})
	check(err)
	pool, err := transfer.New(dev, transfer.Config{})
	check(err)
	stream, err := dev.NewStream(device.StreamOptions{})
	check(err)
	rt, err := tensor.NewRuntime(cache, pool, stream)
	check(err)
	return rt, func() {
		check(rt.Close())
		check(pool.Close())
		check(cache.Close())
		check(stream.Close())
		check(dev.Close())
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
