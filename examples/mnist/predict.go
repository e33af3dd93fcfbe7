package main

import (
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"math"
	"os"
	"strings"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
	"github.com/cistern-ml/cistern/examples/mnist/internal/models"
	"github.com/cistern-ml/cistern/tensor"
)

// predict prints the digit that the model of -load sees in the picture of -predict.
func (o options) predict(ctx context.Context, stdout io.Writer) (err error) {
	x, err := readPicture(o.picture)
	if err != nil {
		return err
	}
	env, err := tensor.Open(o.deviceName())
	if err != nil {
		return err
	}
	in := nn.Init(ctx, env, nn.Seed(o.seed))
	defer func() { err = errors.Join(err, in.Close(), env.Close()) }()
	model := models.Recipes[o.model].Model(in)
	if err := in.Err(); err != nil {
		return err
	}
	if err := nn.LoadModel(ctx, model, o.load); err != nil {
		return err
	}
	tape := autograd.NoGrad(ctx, env)
	defer func() { err = closeTape(tape, err) }()
	shares := tape.Softmax(model.Forward(tape, autograd.Upload(tape, x, 1, digits.Pixels)))
	if err := tape.Err(); err != nil {
		return err
	}
	p, err := tensor.ToSlice[float32](ctx, shares.Value(), nil)
	if err != nil {
		return err
	}
	best := 0
	for digit, share := range p {
		if math.IsNaN(float64(share)) {
			return fmt.Errorf("mnist: -predict: the model of -load %s answers %v for digit %d: want a number", o.load, share, digit)
		}
		if share > p[best] {
			best = digit
		}
	}
	fmt.Fprintf(stdout, "%s is a %d\n\n", o.picture, best)
	for digit, share := range p {
		fmt.Fprintf(stdout, "%d %6.2f %% %s\n", digit, 100*share, strings.Repeat("█", int(share*40+0.5)))
	}
	return nil
}

// readPicture reads a PNG in the form of the data set's pictures: 28 by 28 pixels from 0 to 1,
// white on black. It inverts a picture that is black on white.
func readPicture(name string) ([]float32, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("mnist: -predict: %w", err)
	}
	defer f.Close()
	// The size is checked first, because a header may claim more pixels than memory can hold.
	config, err := png.DecodeConfig(f)
	if err != nil {
		return nil, fmt.Errorf("mnist: -predict: %s: %w", name, err)
	}
	if config.Width != digits.Side || config.Height != digits.Side {
		return nil, fmt.Errorf("mnist: -predict: %s has %d by %d pixels: want %d by %d", name, config.Width, config.Height, digits.Side, digits.Side)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("mnist: -predict: %w", err)
	}
	picture, err := png.Decode(f)
	if err != nil {
		return nil, fmt.Errorf("mnist: -predict: %s: %w", name, err)
	}
	return intensities(picture), nil
}

func intensities(picture image.Image) []float32 {
	x := make([]float32, 0, digits.Pixels)
	sum := float32(0)
	at := picture.Bounds().Min
	for row := range digits.Side {
		for column := range digits.Side {
			v := digits.Intensity[color.GrayModel.Convert(picture.At(at.X+column, at.Y+row)).(color.Gray).Y]
			x, sum = append(x, v), sum+v
		}
	}
	if sum > digits.Pixels/2 {
		for i, v := range x {
			x[i] = 1 - v
		}
	}
	return x
}
