// Mnist trains a small model on the real MNIST digits, and shows what each training step did with memory.
//
//	go run ./examples/mnist
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
	"syscall"
	"time"

	"github.com/cistern-ml/cistern/autograd/nn"
	_ "github.com/cistern-ml/cistern/device/cuda"
	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
)

func main() {
	signal.Ignore(syscall.SIGPIPE) // what reads the standard output may end before the training does
	ctx, stop := untilSignal(context.Background())
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// run is the program; it returns the exit status: 0, 1 after an error, or that of the signal that ended ctx. A standard
// output that fails is an error in the end, after everything else is done.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parseOptions(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	out := &shared{w: stdout} // by the exporters of -trace stdout
	switch {
	case err != nil:
	case o.picture != "":
		err = o.predict(ctx, out)
	case o.forecast:
		err = o.foresee(ctx, out, stderr)
	default:
		err = runOptions(ctx, o, out, stderr)
	}
	if interrupted(ctx, err) {
		fmt.Fprintln(o.text(out, stderr), "interrupted before the first step")
		err = nil
	}
	if failure := out.failure(); failure != nil && !errors.Is(err, failure) {
		err = errors.Join(err, failure)
	}
	if err != nil {
		// Errors are joined by line ends; a line that begins with a tab belongs to the one before.
		text := strings.ReplaceAll(strings.ReplaceAll(err.Error(), "\n", "; "), "; \t", "\n\t")
		if !strings.HasPrefix(text, "mnist: ") {
			text = "mnist: " + text
		}
		fmt.Fprintln(stderr, text)
		return 1
	}
	return exitStatus(ctx)
}

// runOptions runs what the command line says, tells what it did with memory, also if it fails, and sends the telemetry.
func runOptions(ctx context.Context, o options, stdout, stderr io.Writer) error {
	parties, err := o.parties()
	if err != nil {
		return err
	}
	return o.runParties(ctx, parties, stdout, stderr)
}

// runParties is runOptions with the ranks of this process.
func (o options) runParties(ctx context.Context, parties []*party, stdout, stderr io.Writer) error {
	if parties[0].number() > 0 { // another process has the first rank
		exporter := o.trace
		o = o.quiet()
		o.trace = exporter
	} else if err := o.writable(ctx); err != nil {
		return err
	}
	text := o.text(stdout, stderr)
	telemetry, err := newTelemetry(ctx, o.trace, stdout)
	if err != nil {
		return err
	}
	spanned, span := telemetry.start(ctx, o)
	profiling, err := newProfiling(o, text)
	if err != nil {
		telemetry.end(ctx, span, err)
		telemetry.report(text)
		return err
	}
	r, err := o.run(spanned, parties, telemetry, profiling, text, stderr)
	err = errors.Join(err, profiling.end()) // if the training did not begin
	telemetry.end(ctx, span, err)
	if r != nil && r.seen != nil && o.confusion {
		printConfusion(text, r.seen)
	}
	var printed error
	if r != nil && (err == nil || r.Memory.Steps > 0) {
		printed = r.print(text)
	}
	telemetry.report(text)
	if r != nil && r.trained && o.json != "" {
		err = errors.Join(err, writeJSON(o.json, stdout, r))
	}
	return errors.Join(err, printed)
}

// runRank trains and tests as one rank, or alone; the result is nil if it did not get that far.
func (o options) runRank(ctx context.Context, telemetry *telemetry, profiling *profiling, stdout, stderr io.Writer) (r *result, err error) {
	training, err := digits.Load(ctx, o.data, digits.Train)
	if err != nil {
		return nil, err
	}
	testing, err := digits.Load(ctx, o.data, digits.Test)
	if err != nil {
		return nil, err
	}
	together := min(o.batch, training.Len())
	batches := digits.Batches{Data: training, Size: max(1, together/o.party.ranks()), Seed: o.seed, Rank: o.party.number(), Ranks: o.party.ranks()}
	if profiling.rank, err = newRankFile(o.rankprofile, o.party, o.resumes()); err != nil {
		return nil, err
	}
	tests := digits.Batches{Data: testing, Size: batches.Size, InOrder: true}
	t, err := newTrainer(ctx, o, batches.Fields(), o.epochs*batches.Count(), telemetry, profiling)
	if err != nil {
		return nil, err
	}
	r = &result{Device: t.env.Device().Name(), Model: o.model, Optimizer: o.optimizer, Batch: together, Ranks: o.party.ranks(), Seed: o.seed}
	fmt.Fprintf(stdout, "%s on %s: %d parameters, %s, %d pictures in steps of %d%s, tested on %d\n",
		o.model, t.env.Device().Name(), t.model.Parameters().Elements(), o.optimizer, training.Len(), together, o.dealt(), testing.Len())

	err = r.train(ctx, t, o.epochs, batches, tests, stdout, stderr)
	err = errors.Join(err, t.profiler.Flush(context.WithoutCancel(ctx)))
	r.measure(t)
	if err == nil {
		r.Peaks, err = t.peaks(context.WithoutCancel(ctx))
	} else if t.abort != nil {
		_ = t.abort() // the others wait for this rank
	}
	r.trained = err == nil
	if err == nil && o.save != "" {
		err = nn.SaveModel(context.WithoutCancel(ctx), t.model, o.save)
	}
	return r, errors.Join(err, t.close())
}

// train trains and tests epoch by epoch, until ctx is done.
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
				return nil // between two epochs: there is nothing new to tell
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

// test is on all test pictures, also when ctx is done, and by the first rank.
func (r *result) test(ctx context.Context, t *trainer, tests digits.Batches) (err error) {
	if t.ranks != nil && t.ranks.Rank() > 0 {
		return nil
	}
	if r.seen, err = t.test(context.WithoutCancel(ctx), tests.Epoch(0)); err == nil {
		r.TestAccuracy = r.seen.Accuracy()
	}
	return err
}
