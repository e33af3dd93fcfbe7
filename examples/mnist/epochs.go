package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
)

// train trains and tests epoch by epoch, until ctx is cancelled.
func (r *result) train(ctx context.Context, t *trainer, epochs int, batches, tests digits.Batches, stdout, stderr io.Writer) error {
	began := time.Now()
	defer func() { r.Seconds = time.Since(began).Seconds() }()
	for epochs >= t.place.At.Epoch && !r.Interrupted {
		at := t.place.At
		steps := batches.Count() - at.Batch
		step, done := progress(stderr, at.Epoch, epochs, steps)
		start, before, waited := time.Now(), t.place.Step, t.loader.Stats().Waited
		loss, err := t.epoch(ctx, batches.From(at), steps, func() {
			t.place.At = batches.Sampler().Next(t.place.At)
			step()
		})
		done()
		trained := time.Since(start)
		waited = t.loader.Stats().Waited - waited
		r.TrainSeconds += trained.Seconds()
		r.DataWaitSeconds += waited.Seconds()
		r.Interrupted = errors.Is(err, errStopped) || ctx.Err() != nil && errors.Is(err, ctx.Err())
		if err != nil && !r.Interrupted {
			return err
		}
		if err := t.keep(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		if r.Interrupted {
			fmt.Fprintf(stdout, "interrupted after step %d\n", t.place.Step)
			if t.place.Step == before {
				return nil // between two epochs: there is nothing new to print
			}
		}
		if err := r.test(ctx, t, tests); err != nil {
			return err
		}
		r.Loss = append(r.Loss, number(loss))
		if !r.Interrupted {
			r.Epochs++
		}
		fmt.Fprintf(stdout, "epoch %d/%d   loss %.4f   test accuracy %.2f %%   %.1f s   waited for data %.1f %%\n",
			at.Epoch, epochs, loss, 100*r.TestAccuracy, trained.Seconds(), 100*waited.Seconds()/trained.Seconds())
	}
	if r.seen == nil && !r.Interrupted { // the file of -resume has the whole training
		if err := r.test(ctx, t, tests); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "all %d epochs are done   test accuracy %.2f %%\n", epochs, 100*r.TestAccuracy)
	}
	return nil
}

// test tests the model on all test pictures, even if ctx is cancelled. Only the first rank does it.
func (r *result) test(ctx context.Context, t *trainer, tests digits.Batches) (err error) {
	if t.ranks != nil && t.ranks.Rank() > 0 {
		return nil
	}
	if r.seen, err = t.test(context.WithoutCancel(ctx), tests.Epoch(0)); err == nil {
		r.TestAccuracy = r.seen.Accuracy()
	}
	return err
}

// progress shows the progress of an epoch: as a bar on a terminal, else not at all.
func progress(w io.Writer, epoch, epochs, steps int) (step, done func()) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return func() {}, func() {}
	}
	bar := progressbar.NewOptions(steps,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription(fmt.Sprintf("epoch %d/%d", epoch, epochs)),
		progressbar.OptionSetWidth(40),
		progressbar.OptionShowCount(),
		progressbar.OptionShowIts(),
		progressbar.OptionSetItsString("steps"),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionUseANSICodes(true),
	)
	return func() { _ = bar.Add(1) }, func() { _ = bar.Clear(); _ = bar.Close() }
}
