// Package forecasttest compares forecasts of trainings with the trainings.
package forecasttest

import (
	"context"
	"errors"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/forecast"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/tensor"
)

// How describes the steps of a training.
type How struct {
	Name                              string
	dtype                             tensor.Dtype
	checkpointed, offloaded, captured bool
}

// The ways in which each task is compared.
var (
	Plain        = How{Name: "plain", dtype: tensor.Float32}
	BFloat16     = How{Name: "bfloat16", dtype: tensor.BFloat16}
	Checkpointed = How{Name: "checkpointed", dtype: tensor.Float32, checkpointed: true}
	Offloaded    = How{Name: "offloaded", dtype: tensor.Float32, offloaded: true}
	Captured     = How{Name: "captured", dtype: tensor.Float32, captured: true}

	Ways = []How{Plain, BFloat16, Checkpointed, Offloaded, Captured}
)

// Task is a model with its data.
type Task struct {
	Model func(in *nn.Initializer, h How, off *tensor.Offloader) nn.Layer
	Data  func(in *nn.Initializer, batch int) (x, y *tensor.Tensor)
}

// Program trains a task with Adam.
func (k Task) Program(h How, batch int) forecast.Program {
	return func(ctx context.Context, rt *tensor.Runtime) (*forecast.Training, error) {
		var closers []func() error
		closed := func() (err error) {
			for _, c := range closers {
				err = errors.Join(c(), err)
			}
			return err
		}
		var off *tensor.Offloader
		if h.offloaded {
			var err error
			if off, err = tensor.NewOffloader(rt, tensor.OffloadConfig{}); err != nil {
				return nil, err
			}
			closers = append([]func() error{off.Close}, closers...)
		}
		in := nn.Init(ctx, rt, nn.Seed(1), nn.ComputeDtype(h.dtype))
		closers = append([]func() error{in.Close}, closers...)
		model := k.Model(in, h, off)
		adam := nn.Own(in, optim.NewAdam(nn.ParametersOf(model), optim.AdamConfig{}))
		x, y := k.Data(in, batch)
		if err := in.Err(); err != nil {
			return nil, errors.Join(err, closed())
		}
		if h.offloaded {
			if err := errors.Join(adam.Prepare(ctx), offload.State(ctx, adam, off, 0)); err != nil {
				return nil, errors.Join(err, closed())
			}
		}
		eager := func(ctx context.Context) error {
			tape := autograd.NewTape(ctx, rt)
			tape.SetComputeDtype(h.dtype)
			loss := tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y)
			optim.Minimize(tape, loss, adam)
			return tape.Close()
		}
		step, graph := eager, (*tensor.Graph)(nil)
		if h.captured {
			step = func(ctx context.Context) (err error) {
				if graph == nil {
					if err = eager(ctx); err == nil {
						graph, err = rt.Capture(ctx, eager)
					}
					return err
				}
				return graph.Replay(ctx)
			}
		}
		return &forecast.Training{Model: model, Step: step, Close: func() error {
			var err error
			if graph != nil {
				err = graph.Close()
			}
			return errors.Join(err, closed())
		}}, nil
	}
}

// Wrapped returns a layer as the task's training uses it.
func (h How) Wrapped(l nn.Layer, off *tensor.Offloader) nn.Layer {
	switch {
	case h.checkpointed:
		return remat.Layer(l)
	case off != nil:
		return offload.Layer(l, off)
	}
	return l
}
