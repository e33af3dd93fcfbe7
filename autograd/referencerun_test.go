package autograd_test

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// runFile is a training run of PyTorch, from NAME.safetensors to NAME.after.safetensors.
type runFile struct {
	Conf         string
	BatchShape   [2][]int         `json:"batch_shape"`
	MicroBatches int              `json:"micro_batches"`
	Batches      [][2][]refNumber // inputs and labels
	Steps        [][3]refNumber   // loss, gradient norm before clipping, learning rate
	Eval         *struct {
		Input, Output []refNumber
		Shape         []int
	}
}

// runModel is a model of the runs: Forward gives logits, whose last dimension is the classes.
type runModel interface {
	Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable
}

// runSettings are the settings of a run besides its optimiser.
type runSettings struct {
	model func(in *nn.Initializer, shape func(name string) []int) runModel
	clip  float64
	rate  func(step int) float64 // factor of the learning rate; nil: 1
}

var runs = map[string]runSettings{
	"cnn":    {model: newRunCNN},
	"resnet": {model: newRunResNet},
	"lstm":   {model: newRunLSTM},
	"gpt": {model: newRunGPT, clip: 1, rate: func(i int) float64 {
		if i < 5 {
			return float64(i+1) / 5
		}
		return 0.1 + 0.9*0.5*(1+math.Cos(math.Pi*float64(i-5)/35))
	}},
}

// TestReferenceRun trains as PyTorch did: every step has its loss, its norm of the gradients and
// its learning rate, and at the end the parameters and buffers are PyTorch's. With -short it takes
// the first two steps, and continues with PyTorch's parameters.
func TestReferenceRun(t *testing.T) {
	names, err := filepath.Glob(filepath.Join(referenceFolder(), "models", "*.json.gz"))
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, path := range names {
		name := strings.TrimSuffix(filepath.Base(path), ".json.gz")
		t.Run(name, func(t *testing.T) {
			settings, ok := runs[name]
			require.True(t, ok, "there is no model %q", name)
			var f runFile
			readReference(t, filepath.Join("models", name+".json.gz"), &f)
			b := tapetest.Open(t, 1<<30)
			in := nn.Init(b.Ctx, b.RT)
			defer func() { require.NoError(t, in.Close()) }()
			r := &trainingRun{t: t, b: b, in: in, f: &f, settings: settings, compute: tensor.Float32, near: [2]float64{1e-4, 1e-3}}
			r.model = settings.model(in, shapesOf(t, name))
			require.NoError(t, in.Err())
			r.load(name)
			if testing.Short() {
				f.Steps = f.Steps[:2]
				r.train()
				r.load(name + ".after")
			} else {
				r.train()
			}
			r.compare(name)
			r.evaluate()
		})
	}
}

func modelPath(name string) string {
	return filepath.Join(referenceFolder(), "models", name+".safetensors")
}

// shapesOf returns the shapes of a model's file.
func shapesOf(t testing.TB, name string) func(string) []int {
	t.Helper()
	f, err := safetensors.Open(modelPath(name))
	require.NoError(t, err)
	defer f.Close()
	shapes := map[string][]int{}
	for _, info := range f.Tensors() {
		shapes[info.Name] = info.Shape
	}
	return func(name string) []int {
		shape, ok := shapes[name]
		require.True(t, ok, "the file has no %s", name)
		return shape
	}
}

// trainingRun is a run that is repeated.
type trainingRun struct {
	t        testing.TB
	b        *tapetest.Bench
	in       *nn.Initializer
	f        *runFile
	settings runSettings
	model    runModel
	compute  tensor.Dtype // of the tapes
	near     [2]float64   // how far losses and norms may be off, of themselves
}

func (r *trainingRun) load(name string) {
	f, err := safetensors.Open(modelPath(name))
	require.NoError(r.t, err)
	defer f.Close()
	_, err = nn.LoadWeights(r.b.Ctx, r.model, f)
	require.NoError(r.t, err)
}

func (r *trainingRun) train() {
	params := nn.ParametersOf(r.model)
	opt := optimizerOf(r.t, firstCall(r.f.Conf), params)
	defer func() { require.NoError(r.t, opt.Close()) }()
	base := opt.LR()
	clip := r.settings.clip
	if clip == 0 {
		clip = 1e30
	}
	for i, want := range r.f.Steps {
		if r.settings.rate != nil {
			require.NoError(r.t, opt.SetLR(base*r.settings.rate(i)))
		}
		loss := 0.0
		for j := range r.f.MicroBatches {
			loss += r.step(r.f.Batches[i*r.f.MicroBatches+j])
		}
		total, err := optim.ClipGradNormOf(r.b.Ctx, params, clip)
		require.NoError(r.t, err)
		norm, err := tensor.Item[float32](r.b.Ctx, total)
		require.NoError(r.t, err)
		require.NoError(r.t, total.Release())
		require.InEpsilon(r.t, float64(want[0]), loss, r.near[0], "the loss of step %d", i)
		require.InEpsilon(r.t, float64(want[1]), float64(norm), r.near[1], "the norm of the gradients of step %d", i)
		require.InEpsilon(r.t, float64(want[2]), opt.LR(), 1e-9, "the learning rate of step %d", i)
		require.NoError(r.t, opt.Step(r.b.Ctx))
		require.NoError(r.t, opt.ZeroGrad(r.b.Ctx))
	}
}

// firstCall is a text up to the end of the first call in it: "Adam(lr=0.1)" of "Adam(lr=0.1); and
// more (or less)".
func firstCall(text string) string {
	depth := 0
	for i, c := range text {
		switch c {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return text[:i+1]
			}
		}
	}
	return text
}

// step is the forward and backward pass of one batch; it returns the loss.
func (r *trainingRun) step(batch [2][]refNumber) float64 {
	tape := autograd.NewTape(r.b.Ctx, r.b.RT)
	tape.SetComputeDtype(r.compute)
	var x *autograd.Variable
	if shape := r.f.BatchShape[0]; len(shape) == 4 { // pictures
		x = autograd.Upload(tape, convert[float32](batch[0]), shape...)
	} else { // tokens
		x = autograd.Upload(tape, convert[int32](batch[0]), shape...)
	}
	logits := r.model.Forward(tape, x)
	require.NoError(r.t, tape.Err())
	shape := logits.Shape()
	labels, err := tensor.FromSlice(r.b.Ctx, r.b.RT, convert[int32](batch[1]))
	require.NoError(r.t, err)
	flat := tape.Reshape(logits, -1, shape[len(shape)-1])
	loss, err := tape.Backward(tape.MulScalar(tape.CrossEntropy(flat, labels), 1/float64(r.f.MicroBatches)))
	require.NoError(r.t, err)
	value, err := tensor.Item[float32](r.b.Ctx, loss)
	require.NoError(r.t, err)
	require.NoError(r.t, tape.Close())
	require.NoError(r.t, labels.Release())
	return float64(value)
}

// compare is for parameters and buffers after the run: each number within 1e-3.
func (r *trainingRun) compare(name string) {
	f, err := safetensors.Open(modelPath(name + ".after"))
	require.NoError(r.t, err)
	defer f.Close()
	state, err := nn.StateDict(r.model)
	require.NoError(r.t, err)
	require.Len(r.t, f.Tensors(), len(state))
	for _, s := range state {
		want, err := f.Load(r.b.Ctx, r.b.RT, s.Name)
		require.NoError(r.t, err)
		require.Equal(r.t, s.Dtype(), want.Dtype(), s.Name)
		if s.Dtype() == tensor.Int64 {
			require.Equal(r.t, tapetest.Read[int64](r.b, want), tapetest.Read[int64](r.b, s.Tensor), s.Name)
		} else {
			theirs, ours := tapetest.Read[float32](r.b, want), tapetest.Read[float32](r.b, s.Tensor)
			require.Len(r.t, ours, len(theirs), s.Name)
			for i, v := range theirs {
				if !(math.Abs(float64(v-ours[i])) <= 1e-3) { // InDeltaSlice takes a second for all
					require.InDelta(r.t, v, ours[i], 1e-3, "element %d of %s", i, s.Name)
				}
			}
		}
		require.NoError(r.t, want.Release())
	}
}

// evaluate compares the model in evaluation mode, if the run has such results.
func (r *trainingRun) evaluate() {
	e := r.f.Eval
	if e == nil {
		return
	}
	tape := autograd.NoGrad(r.b.Ctx, r.b.RT)
	y := r.model.Forward(tape, autograd.Upload(tape, convert[float32](e.Input), e.Shape...))
	require.NoError(r.t, tape.Err())
	var got []float64
	for _, v := range tapetest.Read[float32](r.b, y.Value()) {
		got = append(got, float64(v))
	}
	requireClose(r.t, "the outputs in use", got, slices.Clone(e.Output), 1e-3)
	require.NoError(r.t, tape.Close())
}
