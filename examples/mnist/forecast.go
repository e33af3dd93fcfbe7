package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/autograd/forecast"
	"github.com/cistern-ml/cistern/autograd/metric"
	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// foreseen is the JSON of a forecast. Its keys are those of a run's results.
type foreseen struct {
	Device             string             `json:"device"`
	Model              string             `json:"model"`
	Optimizer          string             `json:"optimizer"`
	Batch              int                `json:"batch"`
	Ranks              int                `json:"ranks"`
	MaxMemoryAllocated int64              `json:"max_memory_allocated"`
	MaxMemoryReserved  int64              `json:"max_memory_reserved"`
	Forecast           *forecast.Forecast `json:"forecast"`
}

// amounts are the numbers of pictures for training and testing.
type amounts struct{ train, test int }

// foresee prints the memory that the training takes; with several ranks, that of the first one.
func (o options) foresee(ctx context.Context, stdout, stderr io.Writer) error {
	var n amounts
	for s, at := range map[digits.Split]*int{digits.Train: &n.train, digits.Test: &n.test} {
		d, err := digits.Load(ctx, o.data, s)
		if err != nil {
			return err
		}
		*at = d.Len()
	}
	parties, err := o.parties()
	if err != nil {
		return err
	}
	if parties[0].number() > 0 {
		return nil // the first rank prints
	}
	o.ranks = parties[0].ranks()
	if err := o.writable(ctx); err != nil {
		return err
	}
	text := o.text(stdout, stderr)
	f, err := o.searched(ctx, n)
	if err != nil {
		return err
	}
	fmt.Fprintf(text, "%s, %s, %d pictures per step%s\n", o.model, o.optimizer, o.batch, o.dealt())
	if err := f.Table(text); err != nil || o.json == "" {
		return err
	}
	return writeJSON(o.json, stdout, foreseen{f.Device, o.model, o.optimizer, o.batch, o.ranks, f.AllocatedPeak, f.ReservedPeak, f})
}

// searched returns the forecast of the batch. With -largest it first sets the batch to the largest
// that fits.
func (o *options) searched(ctx context.Context, n amounts) (*forecast.Forecast, error) {
	if o.largest != "" {
		limit, err := humanize.ParseBytes(o.largest)
		if err != nil {
			return nil, fmt.Errorf("mnist: -largest %s is not a size, such as 80GiB", o.largest)
		}
		var f *forecast.Forecast
		if o.batch, f, err = o.largestBatch(ctx, int64(limit), n); err == nil && o.batch == 0 {
			err = fmt.Errorf("mnist: -largest %s: one picture for each rank takes %s", o.largest, humanize.IBytes(uint64(f.ReservedPeak)))
		}
		return f, err
	}
	f, err := forecast.Step(ctx, o.dryName(), o.program(n, o.ways(n)))
	if err != nil || f.Fits {
		return f, err
	}
	batch, fits, err := o.largestBatch(ctx, f.Capacity, n)
	if err == nil && batch > 0 {
		f.Advice = append(f.Advice, forecast.Advice{Name: fmt.Sprint("-batch ", batch), Fits: true, AllocatedPeak: fits.AllocatedPeak, ReservedPeak: fits.ReservedPeak})
	}
	return f, err
}

func (o options) largestBatch(ctx context.Context, limit int64, n amounts) (int, *forecast.Forecast, error) {
	// of returns the batch of all ranks.
	of := func(size int) int { return min(size, n.train/o.ranks) * o.ranks }
	size, f, err := forecast.LargestBatch(ctx, o.dryName(), limit, func(size int) forecast.Program {
		o := o
		o.batch = of(size)
		return o.program(n, nil)
	})
	return of(size), f, err
}

// ways returns flags with which the training takes less memory, the cheapest first.
func (o options) ways(n amounts) (all []forecast.Way) {
	add := func(flags string, change func(*options)) {
		o := o
		change(&o)
		all = append(all, forecast.Way{Name: flags, Program: o.program(n, nil)})
	}
	if !o.bfloat16 {
		add("-bfloat16", func(o *options) { o.bfloat16 = true })
	}
	if !o.offload && !o.graph {
		add("-offload", func(o *options) { o.offload = true })
	}
	// Ranks of the host device share the machine's memory.
	onGPU := strings.HasPrefix(o.dryName(), "dry:cuda")
	for ranks := 2; onGPU && o.ranks == 1 && ranks <= 8 && o.batch%ranks == 0; ranks *= 2 {
		add(fmt.Sprintf("-ranks %d -shard gradients", ranks), func(o *options) { o.ranks, o.shard = ranks, "gradients" })
	}
	return all
}

// dryName returns the name of the dry device that stands for the device of -device.
func (o *options) dryName() string {
	var p *party
	if o.ranks > 1 {
		p = o.here()[0]
	}
	name, query, has := strings.Cut(o.deviceOf(p), "?")
	if !strings.HasPrefix(name, "dry:") {
		driver, _, _ := strings.Cut(name, ":")
		name = "dry:" + driver
	}
	if has {
		name += "?" + query
	}
	return name
}

// program returns the training as a program. Its first step takes all kinds of steps and tests that
// allocate in different ways, in the order of a run. Its second step is a single training step.
func (o options) program(n amounts, ways []forecast.Way) forecast.Program {
	return func(ctx context.Context, rt *tensor.Runtime) (*forecast.Training, error) {
		o := o.quiet()
		o.load, o.resume = "", ""
		if o.ranks > 1 {
			o.party = o.here()[0]
			o.party.meeting = ctx
		}
		batch := min(o.batch, n.train)
		whole := digits.Batches{Data: blank(n.train), Size: max(1, batch/o.ranks), Ranks: o.ranks}
		training := whole
		training.Data = blank(short(n.train, batch))
		tests := digits.Batches{Data: blank(short(n.test, whole.Size)), Size: whole.Size}
		t := &trainer{env: rt, steps: o.epochs * whole.Count(), profiling: &profiling{}}
		if err := t.build(ctx, o, whole.Fields()); err != nil {
			return nil, err
		}
		begun := false
		return &forecast.Training{Model: t.model, Ways: ways, Close: t.close, Step: func(ctx context.Context) error {
			if !begun {
				begun = true
				return t.rehearse(ctx, min(o.epochs, 2), training, tests)
			}
			return errors.Join(t.loader.Start(ctx, blanks(training)), t.takeAll(ctx, 1))
		}}, nil
	}
}

// short returns a smaller number of pictures that has the same kinds of batches: at most two whole
// batches and the last one.
func short(pictures, batch int) int {
	if pictures < 3*batch {
		return pictures
	}
	return 2*batch + pictures%batch
}

// rehearse takes the steps of epochs and tests after each, on pictures without values.
func (t *trainer) rehearse(ctx context.Context, epochs int, training, tests digits.Batches) error {
	for range epochs {
		err := errors.Join(t.env.Zero(ctx, t.loss), t.loader.Start(ctx, blanks(training)), t.takeAll(ctx, training.Count()))
		if err == nil && t.ranks == nil {
			seen := metric.NewConfusion(ctx, t.env, digits.Classes)
			err = errors.Join(t.look(ctx, blanks(tests), seen), seen.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *trainer) takeAll(ctx context.Context, steps int) error {
	for range steps {
		if _, err := t.take(ctx); err != nil {
			return err
		}
	}
	return nil
}

// blank returns a data set that has a length but no pictures.
func blank(pictures int) *digits.Set { return &digits.Set{Labels: make([]uint8, pictures)} }

// blanks returns a source of the first epoch's batches that does not write them.
func blanks(b digits.Batches) loader.Source {
	source, err := b.Sampler().Epoch(1, func(context.Context, []int, [][]byte) error { return nil })
	if err != nil {
		return func(context.Context, [][]byte) error { return err }
	}
	return source
}
