package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/tensor"
)

// network is a model whose weights are on the device, ready for requests.
type network struct {
	env    *tensor.Runtime
	model  nn.Sequential
	inputs int // numbers in a request
}

// randomNetwork makes dense layers of the given widths, with random weights and a ReLU between two
// layers.
func randomNetwork(in *nn.Initializer, widths ...int) *network {
	net := &network{env: in.Runtime(), inputs: widths[0]}
	for i, outputs := range widths[1:] {
		net.add(in.Linear(widths[i], outputs))
	}
	return net
}

// newNetwork makes dense layers of the weights "0.weight", "0.bias", "2.weight", … of a file. If
// they are wrong, the initialiser reports the error.
func newNetwork(ctx context.Context, in *nn.Initializer, f *safetensors.File) *network {
	net := &network{env: in.Runtime()}
	width := 0 // of the layer before
	for i := 0; ; i += 2 {
		w, ok := f.Info(fmt.Sprintf("%d.weight", i))
		if !ok {
			break
		}
		if len(w.Shape) != 2 || slices.Min(w.Shape) < 1 || i > 0 && w.Shape[1] != width {
			in.Fail(fmt.Errorf("%s is %v, after %d outputs: want (outputs, inputs)", w.Name, w.Shape, width))
			return net
		}
		if i == 0 {
			net.inputs = w.Shape[1]
		}
		width = w.Shape[0]
		net.add(&nn.Linear{Weight: in.Zeros(w.Shape...), Bias: in.Zeros(width)})
	}
	if len(net.model) == 0 {
		in.Fail(errors.New("the file has no 0.weight"))
		return net
	}
	_, err := nn.LoadWeights(ctx, net.model, f) // checks all other names, shapes and dtypes
	in.Fail(err)
	return net
}

// add appends a layer, after a ReLU if it is not the first.
func (net *network) add(l *nn.Linear) {
	if len(net.model) > 0 {
		net.model = append(net.model, nn.ReLU{})
	}
	net.model = append(net.model, l)
}

// classify returns the class of each request, in classes if its capacity is large enough. A request
// is inputs numbers. The memory of the batch is free when it returns.
func (net *network) classify(ctx context.Context, requests []float32, classes []int32) (_ []int32, err error) {
	tape := autograd.NoGrad(ctx, net.env)
	defer func() {
		if stuck := tape.Close(); err == nil {
			err = stuck
		}
	}()
	logits := net.model.Forward(tape, autograd.Upload(tape, requests, len(requests)/net.inputs, net.inputs))
	if tape.Err() != nil {
		return classes, nil // Close returns the error
	}
	best, err := net.env.ArgMax(ctx, logits.Value())
	if err != nil {
		return classes, err
	}
	defer best.Release()
	return tensor.ToSlice(ctx, best, classes)
}

// measure answers o.n batches of random requests and prints their latencies and memory. The first
// batch, which allocates, is reported separately.
func (net *network) measure(ctx context.Context, o options, out io.Writer) error {
	params := net.model.Parameters()
	if _, err := fmt.Fprintf(out, "%s on %s: %d weights in %d tensors\n", o.device, net.env.Device().Properties().Model, params.Elements(), len(params)); err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(2, 0))
	requests, classes := make([]float32, o.batch*net.inputs), []int32(nil)
	latencies := make([]time.Duration, o.n+1)
	cache := net.env.Cache()
	for i := range latencies {
		for j := range requests {
			requests[j] = random.Float32()
		}
		start := time.Now()
		var err error
		if classes, err = net.classify(ctx, requests, classes); err != nil {
			return err
		}
		latencies[i] = time.Since(start)
		if i == 0 {
			cache.ResetPeakStats()
		}
	}
	first, rest := latencies[0], latencies[1:]
	slices.Sort(rest)
	var sum time.Duration
	for _, l := range rest {
		sum += l
	}
	at := func(share float64) time.Duration {
		return rest[int(share*float64(len(rest)-1))].Round(time.Microsecond)
	}
	_, err := fmt.Fprintf(out, `%d batches of %d: first %v, then median %v, p99 %v, slowest %v; %.0f requests/s
device memory: %s of weights, peak of %s more during a batch, %s reserved
`, o.n, o.batch, first.Round(time.Microsecond), at(0.5), at(0.99), at(1), float64(o.n*o.batch)/sum.Seconds(),
		size(cache.MemoryAllocated()), size(cache.MaxMemoryAllocated()-cache.MemoryAllocated()), size(cache.MemoryReserved()))
	return err
}

func size(n int64) string { return humanize.IBytes(uint64(n)) }
