// Generative learns to draw points of eight clusters on a circle with a variational autoencoder
// (Kingma and Welling, 2013) and a generative adversarial network (Goodfellow et al., 2014).
//
//	go run ./examples/generative
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	_ "github.com/cistern-ml/cistern/device/cuda"
	"github.com/cistern-ml/cistern/tensor"
)

const batch, width, latent = 256, 128, 2

func network(in *nn.Initializer, from, to int) nn.Sequential {
	return nn.Sequential{in.Linear(from, width), nn.SiLU{}, in.Linear(width, width), nn.SiLU{}, in.Linear(width, to)}
}

// normal draws the input of a decoder or generator on the device.
func normal(t *autograd.Tape, rows int) *autograd.Variable {
	return t.Normal(0, 1, tensor.Float32, rows, latent)
}

// vae trains an autoencoder and returns its decoder. The decoder's noise has deviation 0.1.
func vae(in *nn.Initializer, steps int) nn.Layer {
	const precision = 100 // 1/0.1²
	encoder, decoder := network(in, 2, 2*latent), network(in, latent, 2)
	adam := nn.Own(in, optim.NewAdam(append(encoder.Parameters(), decoder.Parameters()...), optim.AdamConfig{}))
	for _, t := range in.Steps(steps) {
		x := in.Tensor(points(in.Rand(), batch), batch, 2)
		code := t.Split(encoder.Forward(t, t.Input(x)), 1, latent, latent)
		mean, logVariance := code[0], code[1]
		z := t.Add(mean, t.Mul(t.Exp(t.MulScalar(logVariance, 0.5)), normal(t, batch)))
		reconstruction := t.MulScalar(t.MSELoss(decoder.Forward(t, z), x), precision)
		// The divergence of N(mean, variance) from N(0, 1), per row.
		divergence := t.Mean(t.Sub(t.Add(t.Square(mean), t.Exp(logVariance)), t.AddScalar(logVariance, 1)))
		optim.Minimize(t, t.Add(reconstruction, t.MulScalar(divergence, latent/2)), adam)
	}
	return decoder
}

// gan trains a generator against a discriminator, in turns, and returns the generator.
func gan(in *nn.Initializer, steps int) nn.Layer {
	generator, discriminator := network(in, latent, 2), network(in, 2, 1)
	config := optim.AdamConfig{LR: new(5e-4), Beta1: new(0.5)}
	g := nn.Own(in, optim.NewAdam(generator.Parameters(), config))
	d := nn.Own(in, optim.NewAdam(discriminator.Parameters(), config))
	real, fake := in.Tensor(slices.Repeat([]float64{1}, batch), batch, 1), in.Tensor(make([]float64, batch), batch, 1)
	for step, t := range in.Steps(2 * steps) {
		drawn := generator.Forward(t, normal(t, batch))
		if step%2 == 1 {
			optim.Minimize(t, t.BCEWithLogits(discriminator.Forward(t, drawn), real), g)
			continue
		}
		x := t.Input(in.Tensor(points(in.Rand(), batch), batch, 2))
		optim.Minimize(t, t.Add(t.BCEWithLogits(discriminator.Forward(t, x), real),
			t.BCEWithLogits(discriminator.Forward(t, t.Detach(drawn)), fake)), d)
	}
	return generator
}

// draw draws n points with a trained decoder or generator.
func draw(ctx context.Context, in *nn.Initializer, model nn.Layer, n int) ([]float64, error) {
	tape := autograd.NoGrad(ctx, in.Runtime())
	tape.SetSeed(1)
	xy := tape.Cast(model.Forward(tape, normal(tape, n)), tensor.Float64)
	numbers, err := tensor.ToSlice[float64](ctx, xy.Value(), nil)
	return numbers, errors.Join(err, tape.Close())
}

// run trains both models and prints the energy distances of their points from the distribution. For
// comparison it prints that of a normal distribution with the same mean and covariance.
func run(ctx context.Context, device string, steps int, out io.Writer) (distances [3]float64, err error) {
	env, err := tensor.Open(device)
	if err != nil {
		return distances, err
	}
	in := nn.Init(ctx, env, nn.Seed(1))
	defer func() { err = errors.Join(err, in.Close(), env.Close()) }()
	want := points(in.Rand(), samples)
	distances[0] = energy(matched(in.Rand(), samples), want)
	for i, train := range []func(*nn.Initializer, int) nn.Layer{vae, gan} {
		model := train(in, steps)
		if err := in.Err(); err != nil {
			return distances, err
		}
		got, err := draw(ctx, in, model, samples)
		if err != nil {
			return distances, err
		}
		distances[1+i] = energy(got, want)
	}
	_, err = fmt.Fprintf(out, "energy distance: normal distribution %.4f, autoencoder %.4f, adversarial network %.4f\n",
		distances[0], distances[1], distances[2])
	return distances, err
}

func main() {
	device := flag.String("device", "host", "`name` of the device")
	steps := flag.Int("steps", 4000, "training steps of each model")
	flag.Parse()
	if _, err := run(context.Background(), *device, *steps, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
