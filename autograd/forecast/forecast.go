package forecast

import (
	"context"

	"github.com/cistern-ml/cistern/autograd/remat"
	_ "github.com/cistern-ml/cistern/device/dry" // registers the devices of Step
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/report"
)

// Program makes a training on a runtime. It must derive the contexts of its allocations from ctx. A
// training that it returns with an error is closed.
type Program func(ctx context.Context, rt *tensor.Runtime) (*Training, error)

// Training is the training that a Program makes.
type Training struct {
	// Step runs the same training step each time. It is called twice. ctx is for all allocations of
	// the step, such as for its tape.
	Step func(ctx context.Context) error
	// Model is the model, as for nn.ParametersOf, for the summary by layers. nil is no summary.
	Model any
	// Close frees everything that the program and its steps still hold. It may be nil.
	Close func() error

	// Plan is the plan of the model's layers, with none chosen, for Advice. It may be nil.
	Plan *remat.Plan
	// Ways are other ways to run the training, for Advice, the cheapest first.
	Ways []Way
}

// Forecast is the memory that a training needs. Sizes are in bytes.
type Forecast struct {
	Device   string `json:"device"`
	Capacity int64  `json:"capacity"` // of the device
	// Fits reports whether the training fits in Capacity. If not, the other figures are those of a
	// device with unlimited memory.
	Fits bool `json:"fits"`

	// AllocatedPeak and ReservedPeak are the peaks over the construction of the model and both
	// steps.
	AllocatedPeak int64 `json:"allocated_peak"`
	ReservedPeak  int64 `json:"reserved_peak"`
	// PinnedPeak is the peak of pinned host memory that the runtime's pool held. It is that of a
	// device that is far behind the host, and does not include the uploads of a model's first
	// values.
	PinnedPeak int64 `json:"pinned_peak"`

	// Step is the profile of the second step. Its times are only the host's.
	Step trace.StepProfile `json:"step"`
	// PeakLine is the source line whose allocation reached Step.AllocatedPeak.
	PeakLine Line `json:"peak_line"`
	// Lines are the source lines that hold memory at that moment, the largest first. Their sum is
	// the peak.
	Lines []Line `json:"lines"`
	// Layers are the layers of the model in the order of the first step.
	Layers []report.Layer `json:"layers,omitempty"`
	// Advice lists other ways to run a training that does not fit, and their memory: allocator
	// options with which the training fits, checkpoints, and the training's Ways.
	Advice []Advice `json:"advice,omitempty"`
}

// Line is a source line that has allocated memory: of the program or, without one in the stack, of
// this module.
type Line struct {
	Function string `json:"function"`
	File     string `json:"file"`
	Line     int    `json:"line"`
	Bytes    int64  `json:"bytes"`
	Blocks   int    `json:"blocks"`
}

// Step forecasts a training on a dry device, such as "dry:host" or "dry:cuda?gpu=L4", with the
// options of [tensor.Open]. If the training does not fit, Fits is false, Advice lists alternatives,
// and the error is nil. Errors are those of the program, including exceeding a memory limit in
// options.
func Step(ctx context.Context, name string, program Program, options ...tensor.Option) (*Forecast, error) {
	return trial{name: name, program: program, options: options}.forecast(ctx, trial.advise)
}

// Measure runs a program like [Step], on a runtime of any device. Nothing may be allocated from the
// runtime before, and nothing else may use it meanwhile. Measure resets the peaks of the cache.
// Layers have no output shapes. A training that does not fit is an error.
func Measure(ctx context.Context, rt *tensor.Runtime, program Program) (*Forecast, error) {
	return trial{program: program}.measure(ctx, rt, nil)
}
