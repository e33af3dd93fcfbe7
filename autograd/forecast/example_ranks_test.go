package forecast_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/forecast"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
)

// A transformer of 24 layers on sequences of 1,024 tokens.
const layers, heads, width, tokens, vocabulary = 24, 16, 1024, 1024, 50304

type layer struct {
	Norm1          *nn.LayerNorm
	Attention      *nn.MultiHeadAttention
	Norm2          *nn.LayerNorm
	Expand, Reduce *nn.Linear
}

func (l *layer) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		h := t.Add(x, l.Attention.Forward(t, l.Norm1.Forward(t, x)))
		return t.Add(h, l.Reduce.Forward(t, t.GELU(l.Expand.Forward(t, l.Norm2.Forward(t, h)))))
	})
}

func newTransformer(in *nn.Initializer) nn.Sequential {
	model := nn.Sequential{in.Embedding(vocabulary, width)}
	for range layers {
		model = append(model, nn.LayerOf(&layer{
			in.LayerNorm(width), in.MultiHeadAttention(width, heads, nn.BatchFirst(), nn.Causal()),
			in.LayerNorm(width), in.Linear(width, 4*width), in.Linear(4*width, width),
		}))
	}
	return append(model, in.LayerNorm(width), in.Linear(width, vocabulary))
}

// rank trains the transformer on its sequences of each batch, as the first of a number of ranks.
func rank(ranks int, shard parallel.Sharding, sequences int) forecast.Program {
	return func(ctx context.Context, rt *tensor.Runtime) (*forecast.Training, error) {
		collectives := rt.Device().(device.Collectives)
		id, err := collectives.NewCommunicatorID()
		if err != nil {
			return nil, err
		}
		comm, err := collectives.NewCommunicator(ctx, id, 0, ranks, device.CommunicatorOptions{})
		if err != nil {
			return nil, err
		}
		in := nn.Init(ctx, rt, nn.ComputeDtype(tensor.BFloat16))
		model := newTransformer(in)
		dp, err := parallel.New(ctx, comm, model, parallel.Config{Shard: shard})
		if err != nil {
			return nil, errors.Join(err, in.Close(), comm.Close())
		}
		adam := nn.Own(in, optim.NewAdamW(nn.ParametersOf(model), optim.AdamConfig{}))
		x, y := in.Labels(make([]int, sequences*tokens), vocabulary), in.Labels(make([]int, sequences*tokens), vocabulary)
		step := func(ctx context.Context) error {
			tape := autograd.NewTape(ctx, rt)
			tape.SetComputeDtype(tensor.BFloat16)
			logits := model.Forward(tape, tape.Reshape(tape.Input(x), sequences, tokens))
			optim.Minimize(tape, tape.CrossEntropy(tape.Reshape(logits, -1, vocabulary), y), adam)
			return errors.Join(tape.Close(), dp.Err())
		}
		end := func() error { return errors.Join(in.Close(), dp.Close(), comm.Close()) }
		return &forecast.Training{Model: model, Step: step, Close: end}, in.Err()
	}
}

// A transformer of 405 million parameters on four GPUs: the memory of each, and the largest batch.
func Example_ranks() {
	ctx := context.Background()
	for _, shard := range []parallel.Sharding{parallel.ShardNothing, parallel.ShardState, parallel.ShardGradients} {
		f, err := forecast.Step(ctx, "dry:cuda?gpu=A100", rank(4, shard, 8))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("sharding %d: %d MiB of each A100\n", shard, f.ReservedPeak>>20)
	}
	n, _, err := forecast.LargestBatch(ctx, "dry:cuda?gpu=A100", 79<<30, func(n int) forecast.Program {
		return rank(4, parallel.ShardState, n)
	})
	fmt.Println("the largest batch:", n, "sequences on each", err)
	// Output:
	// sharding 0: 12664 MiB of each A100
	// sharding 1: 10612 MiB of each A100
	// sharding 2: 10434 MiB of each A100
	// the largest batch: 80 sequences on each <nil>
}
