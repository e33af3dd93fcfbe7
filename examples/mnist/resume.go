package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cistern-ml/cistern/autograd/checkpoint"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// place is the position of a training, with the settings that it began with.
type place struct {
	Settings settings
	Step     int             // steps taken
	At       loader.Position // epochs count from 1
}

// settings are the flags that must be the same for a training to continue.
type settings struct {
	Model, Optimizer string
	Epochs, Batch    int
	LR               float64
	Seed             uint64
	BFloat16         bool
	Steps            int // of the whole training; they depend on the data
}

// resume continues from the file of -resume, if it exists.
func (t *trainer) resume(ctx context.Context, o options) error {
	t.resumeFile = o.resume
	t.place = place{Settings: settings{o.model, o.optimizer, o.epochs, o.batch, o.lr, o.seed, o.bfloat16, t.steps}, At: loader.Position{Epoch: 1}}
	if o.resume == "" {
		return nil
	}
	var kept place
	// The settings are read first: with other settings the model's names and shapes may differ, and
	// the error of loading it would not name the cause.
	err := checkpoint.Checkpoint{State: &kept}.Load(ctx, o.resume)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case kept.Settings != t.place.Settings:
		return fmt.Errorf("mnist: -resume %s: the training was begun with %+v, and this run has %+v", o.resume, kept.Settings, t.place.Settings)
	}
	t.place = kept
	return t.checkpoint().Load(ctx, o.resume)
}

// resumes reports whether the file of -resume exists, so that a training continues.
func (o *options) resumes() bool {
	if o.resume == "" {
		return false
	}
	_, err := os.Stat(o.resume)
	return err == nil
}

// keep writes the file of -resume.
func (t *trainer) keep(ctx context.Context) error {
	if t.resumeFile == "" {
		return nil
	}
	return t.checkpoint().Save(ctx, t.resumeFile)
}

func (t *trainer) checkpoint() checkpoint.Checkpoint {
	return checkpoint.Checkpoint{Model: t.model, Optimizer: t.optimizer, State: &t.place, Ranks: t.ranks}
}
