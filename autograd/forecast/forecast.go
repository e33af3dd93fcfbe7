package forecast

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/dry" // the devices of Step
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/trace"
)

// Program makes a training on a runtime. Contexts of what it allocates come from ctx. After an
// error nothing of it may stay on the runtime.
type Program func(ctx context.Context, rt *tensor.Runtime) (*Training, error)

// Training is what a Program has made.
type Training struct {
	// Step takes a training step: the same one each time. It is called twice. ctx is the context of
	// all that the step allocates, such as that of its tape.
	Step func(ctx context.Context) error
	// Model is for the summary by layers, as for nn.ParametersOf. nil: there is no summary.
	Model any
	// Close frees what the program and its steps have left. nil: there is nothing to free.
	Close func() error
}

// Forecast is what a training takes. Sizes are bytes.
type Forecast struct {
	Device   string `json:"device"`
	Capacity int64  `json:"capacity"` // of the device
	// Fits reports whether it took place within Capacity. If not, the other figures are those of a
	// device of unlimited memory.
	Fits bool `json:"fits"`

	// AllocatedPeak and ReservedPeak are the most of all: while the model was made, and in both
	// steps.
	AllocatedPeak int64 `json:"allocated_peak"`
	ReservedPeak  int64 `json:"reserved_peak"`
	// PinnedPeak is the most pinned host memory that the runtime's pool held, for a device that is
	// far behind the host, and without the uploads of a model's first values.
	PinnedPeak int64 `json:"pinned_peak"`

	// Step is the profile of the second step. Its times are those of the host alone.
	Step trace.StepProfile `json:"step"`
	// PeakLine is the line whose allocation reached Step.AllocatedPeak.
	PeakLine Line `json:"peak_line"`
	// Lines are the lines that hold memory at that moment, the largest first. They add up to the
	// peak.
	Lines []Line `json:"lines"`
	// Layers are the parts of the model in the order of the first step.
	Layers []Layer `json:"layers,omitempty"`
	// Advice is what helps, if it does not fit: how much is missing, and what takes the most.
	Advice []string `json:"advice,omitempty"`
}

// Line is a line of the program, or else of this module, that has allocated memory.
type Line struct {
	Function string `json:"function"`
	File     string `json:"file"`
	Line     int    `json:"line"`
	Bytes    int64  `json:"bytes"`
	Blocks   int    `json:"blocks"`
}

// Step forecasts a training on a dry device, such as "dry:host" or "dry:cuda?gpu=L4", with the
// options of [tensor.Open]. A training that does not fit is a Forecast with Fits false and Advice.
// An error is one of the program, as is running out of a memory limit that the options name.
func Step(ctx context.Context, name string, program Program, options ...tensor.Option) (*Forecast, error) {
	f, err := run(ctx, name, program, options)
	if err == nil || !errors.Is(err, memcache.ErrOutOfMemory) {
		return f, err
	}
	capacity := f.Capacity
	unlimited, again := withCapacity(name, maxCapacity)
	if again != nil {
		return nil, again
	}
	if f, again = run(ctx, unlimited, program, options); again != nil {
		return nil, errors.Join(err, again)
	}
	f.Capacity, f.Fits = capacity, false
	f.Advice = f.advise()
	return f, nil
}

// maxCapacity is the capacity of a device of unlimited memory.
const maxCapacity = 1 << 45

// withCapacity is the name of a device with another capacity.
func withCapacity(name string, bytes int64) (string, error) {
	kind, query, _ := strings.Cut(name, "?")
	options, err := url.ParseQuery(query)
	if err != nil {
		return "", fmt.Errorf("forecast: the options of %q: %w", name, err)
	}
	options.Set("capacity", strconv.FormatInt(bytes, 10))
	return kind + "?" + options.Encode(), nil
}

// run runs a program on a dry device. The forecast has the device's capacity also after an error
// that wraps memcache.ErrOutOfMemory.
func run(ctx context.Context, name string, program Program, options []tensor.Option) (f *Forecast, err error) {
	if !strings.HasPrefix(name, "dry:") {
		return nil, fmt.Errorf("forecast: device %q is not a dry one, such as dry:host or dry:cuda?gpu=L4; Measure takes any", name)
	}
	var shapes shapes
	rt, err := tensor.Open(name, append(options[:len(options):len(options)], tensor.OnOperation(shapes.note))...)
	if err != nil {
		return nil, fmt.Errorf("forecast: %w", err)
	}
	f, err = measure(ctx, rt, program, &shapes)
	if closed := rt.Close(); err == nil && closed != nil {
		err = fmt.Errorf("forecast: %w", closed)
	}
	return f, err
}

// Measure runs a program as [Step] does, on a runtime of any device, which nothing else uses
// meanwhile and from which nothing is allocated. It resets the peaks of the cache. Layers have no
// output shapes. A training that does not fit is an error.
func Measure(ctx context.Context, rt *tensor.Runtime, program Program) (*Forecast, error) {
	return measure(ctx, rt, program, nil)
}

func measure(ctx context.Context, rt *tensor.Runtime, program Program, shapes *shapes) (f *Forecast, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("forecast: %w", err)
		}
	}()
	if ctx == nil || rt == nil {
		return nil, fmt.Errorf("%w: the context or the runtime is nil", device.ErrInvalid)
	}
	if program == nil {
		return nil, errors.New("there is no program")
	}
	f = &Forecast{Device: rt.Device().Name(), Capacity: rt.Device().Properties().TotalMemory, Fits: true}
	rt.Cache().ResetPeakStats()
	log, err := startLog(rt.Cache())
	if err != nil {
		return f, err
	}
	defer log.end()
	profiler, err := trace.NewProfiler(trace.ProfilerConfig{Cache: rt.Cache(), Pool: rt.Pool(), Holders: true, OnProfile: func(p trace.StepProfile) { f.Step = p }})
	if err != nil {
		return f, err
	}
	training, err := program(ctx, rt)
	if err == nil && (training == nil || training.Step == nil) {
		err = errors.New("the program has made no training step")
	}
	if err != nil {
		return f, errors.Join(err, profiler.Close())
	}
	defer func() {
		if training.Close != nil {
			err = errors.Join(err, training.Close())
		}
	}()
	for number := int64(1); number <= 2 && err == nil; number++ {
		log.stream.Note(uint64(number))
		stepping, step := profiler.StartStep(ctx, number)
		err = training.Step(stepping)
		step.Fail(err)
		step.End()
	}
	log.end()
	if err = errors.Join(err, profiler.Close(), rt.Synchronize(context.WithoutCancel(ctx))); err != nil {
		return f, err
	}
	s := rt.Cache().Stats()
	f.AllocatedPeak, f.ReservedPeak = s.AllocatedBytes.All.Peak, s.ReservedBytes.All.Peak
	f.PinnedPeak = rt.Pool().Stats().HeldBytes.Peak
	f.PeakLine, f.Lines = log.lines()
	f.Layers = log.layers(training.Model, shapes)
	return f, nil
}
