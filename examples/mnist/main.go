// Mnist trains a small model on the MNIST digits and shows the memory of each training step.
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

	"go.opentelemetry.io/otel/attribute"

	"github.com/cistern-ml/cistern/autograd/nn"
	_ "github.com/cistern-ml/cistern/device/cuda"
	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
	"github.com/cistern-ml/cistern/trace/telemetry"
)

func main() {
	signal.Ignore(syscall.SIGPIPE) // the reader of the standard output may exit first
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program. It returns the exit status: 0, 1 after an error, or that of the signal that
// ended ctx. After an error of the standard output it completes its work, and then returns 1.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parseOptions(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	out := &shared{w: stdout} // with the exporters of -trace stdout
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
		// Joined errors are separated by newlines. A line that begins with a tab continues the one
		// before it.
		text := strings.ReplaceAll(strings.ReplaceAll(err.Error(), "\n", "; "), "; \t", "\n\t")
		if !strings.HasPrefix(text, "mnist: ") {
			text = "mnist: " + text
		}
		fmt.Fprintln(stderr, text)
		return 1
	}
	return exitStatus(ctx)
}

// runOptions trains as the options say, prints the memory figures, even after an error, and sends
// the telemetry.
func runOptions(ctx context.Context, o options, stdout, stderr io.Writer) error {
	parties, err := o.parties()
	if err != nil {
		return err
	}
	return o.runParties(ctx, parties, stdout, stderr)
}

// runParties is runOptions for the ranks of this process.
func (o options) runParties(ctx context.Context, parties []*party, stdout, stderr io.Writer) error {
	if parties[0].number() > 0 { // another process has the first rank
		exporter := o.trace
		o = o.quiet()
		o.trace = exporter
	} else if err := o.writable(ctx); err != nil {
		return err
	}
	text := o.text(stdout, stderr)
	var (
		sdk *telemetry.SDK
		err error
	)
	if o.trace != "none" {
		if sdk, err = telemetry.New(ctx, telemetry.Config{Exporter: o.trace, Output: stdout, Service: "mnist"}); err != nil {
			return ofFlag("trace", err)
		}
	}
	spanned, span := sdk.Start(ctx, "mnist", attribute.String("mnist.device", o.device), attribute.String("mnist.model", o.model),
		attribute.String("mnist.optimizer", o.optimizer), attribute.Int("mnist.batch", o.batch), attribute.Int("mnist.epochs", o.epochs))
	end := func(err error) {
		span.SetAttributes(attribute.Bool("mnist.interrupted", ctx.Err() != nil))
		if interrupted(ctx, err) {
			err = nil
		}
		sdk.Shutdown(span, err)
	}
	profiling, err := newProfiling(o, text)
	if err != nil {
		end(err)
		sdk.Report(text)
		return err
	}
	r, err := o.run(spanned, parties, sdk, profiling, text, stderr)
	err = errors.Join(err, profiling.end()) // if the training did not begin
	end(err)
	if r != nil && r.seen != nil && o.confusion {
		printConfusion(text, r.seen)
	}
	var printed error
	if r != nil && (err == nil || r.Memory.Steps > 0) {
		printed = r.print(text)
	}
	sdk.Report(text)
	if r != nil && r.trained && o.json != "" {
		err = errors.Join(err, writeJSON(o.json, stdout, r))
	}
	return errors.Join(err, printed)
}

// runRank trains and tests as one rank, or alone. The result is nil after an error before
// the training.
func (o options) runRank(ctx context.Context, sdk *telemetry.SDK, profiling *profiling, stdout, stderr io.Writer) (r *result, err error) {
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
	if err = profiling.beginRank(o); err != nil {
		return nil, err
	}
	tests := digits.Batches{Data: testing, Size: batches.Size, InOrder: true}
	t, err := newTrainer(ctx, o, batches.Fields(), o.epochs*batches.Count(), sdk, profiling)
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

// interrupted reports whether err is only the cancellation of ctx.
func interrupted(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)))
}

// exitStatus returns 0 or, after a signal, the status that shells report: 130 after Ctrl-C, 143
// after SIGTERM.
func exitStatus(ctx context.Context) int {
	switch cause := context.Cause(ctx); {
	case cause == nil:
		return 0
	case strings.HasPrefix(cause.Error(), syscall.SIGTERM.String()):
		return 128 + int(syscall.SIGTERM)
	}
	return 128 + int(syscall.SIGINT)
}
