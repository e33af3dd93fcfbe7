// Inference loads the weights of a dense network, answers batches of requests with it, and prints
// the latency of a batch and the device memory.
//
//	go run ./examples/inference
//	go run ./examples/inference -weights model.safetensors -batch 8 -n 500
//
// The weights are those of torch.nn.Sequential(Linear, ReLU, Linear, …), in a file of
// safetensors.torch.save_file with its state_dict. Without a file the network is 784-512-512-10,
// with random weights.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/safetensors"
	_ "github.com/cistern-ml/cistern/device/cuda"
	"github.com/cistern-ml/cistern/tensor"
)

type options struct {
	device  string
	weights string
	batch   int
	n       int
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "inference:", strings.ReplaceAll(err.Error(), "\n", "; "))
		os.Exit(1)
	}
}

func parse(args []string, out io.Writer) (o options, err error) {
	f := flag.NewFlagSet("inference", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&o.device, "device", "host", "`name` of the device")
	f.StringVar(&o.weights, "weights", "", "safetensors `file` with the weights; empty: random weights")
	f.IntVar(&o.batch, "batch", 32, "requests in a batch")
	f.IntVar(&o.n, "n", 200, "number of batches")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.batch < 1 || o.n < 1 {
		return o, fmt.Errorf("-batch %d -n %d: want at least 1 of each", o.batch, o.n)
	}
	return o, nil
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	o, err := parse(args, out)
	if err != nil {
		return err
	}
	env, err := tensor.Open(o.device)
	if err != nil {
		return err
	}
	in := nn.Init(ctx, env, nn.Seed(1))
	defer func() { err = errors.Join(err, in.Close(), env.Close()) }()
	net, err := o.network(ctx, in)
	if err != nil || in.Err() != nil {
		return err // Close returns in's error
	}
	return net.measure(ctx, o, out)
}

// network returns the network of the file, or a random one.
func (o options) network(ctx context.Context, in *nn.Initializer) (*network, error) {
	if o.weights == "" {
		return randomNetwork(in, 784, 512, 512, 10), nil
	}
	f, err := safetensors.Open(o.weights)
	if err != nil {
		return nil, err
	}
	return newNetwork(ctx, in, f), f.Close()
}
