package forecast

import (
	"context"

	"github.com/cistern-ml/cistern/autograd/remat"
	_ "github.com/cistern-ml/cistern/device/dry" // the devices of Step
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/report"
)

// Program makes a training on a runtime. Contexts of its allocations come from ctx. A training that
// it returns with an error is closed.
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

	// Plan is that of the model's layers, for advice, with none chosen. nil: there is none.
	Plan *remat.Plan
	// Ways are other ways of the training, for advice, the cheapest first.
	Ways []Way
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
	Layers []report.Layer `json:"layers,omitempty"`
	// Advice are other ways of a training that does not fit, and what they take: an option of the
	// allocator if the training fits with it, checkpoints, and the training's Ways.
	Advice []Advice `json:"advice,omitempty"`
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
	return trial{name: name, program: program, options: options}.forecast(ctx, trial.advise)
}

// Measure runs a program as [Step] does, on a runtime of any device, which nothing else uses
// meanwhile and from which nothing is allocated. It resets the peaks of the cache. Layers have no
// output shapes. A training that does not fit is an error.
func Measure(ctx context.Context, rt *tensor.Runtime, program Program) (*Forecast, error) {
	return trial{program: program}.measure(ctx, rt, nil)
}
