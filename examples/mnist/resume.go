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

// place is where a training is, and what it was begun with.
type place struct {
	Settings settings
	Step     int             // how many steps were taken
	At       loader.Position // epochs count from 1
}

// settings are the flags without which a training would not go on as it began.
type settings struct {
	Model, Optimizer string
	Epochs, Batch    int
	LR               float64
	Seed             uint64
	BFloat16         bool
	Steps            int // of the whole training: with other data they are others
}

// resume goes on from the file of -resume, if there is one.
func (t *trainer) resume(ctx context.Context, o options) error {
	t.resumeFile = o.resume
	t.place = place{Settings: settings{o.model, o.optimizer, o.epochs, o.batch, o.lr, o.seed, o.bfloat16, t.steps}, At: loader.Position{Epoch: 1}}
	if o.resume == "" {
		return nil
	}
	var kept place
	// First without the model, whose names and shapes may be others, so that the error says why.
	err := checkpoint.Checkpoint{State: &kept}.Load(ctx, o.resume)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case kept.Settings != t.place.Settings:
		return fmt.Errorf("mnist: -resume %s: the training was begun with %+v, and this one is of %+v", o.resume, kept.Settings, t.place.Settings)
	}
	t.place = kept
	return t.checkpoint().Load(ctx, o.resume)
}

// resumes reports whether a training goes on.
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
