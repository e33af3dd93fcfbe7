package checkpoint_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/checkpoint"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// training is a small training in which every part has a state.
type training struct {
	b         *tapetest.Bench
	in        *nn.Initializer
	model     nn.Sequential
	opt       optim.Optimizer
	scheduler *optim.Scheduler
	data      loader.Sampler
	at        struct {
		Step int
		Data loader.Position
		Loss []float64
	}
}

// cycled are optimisers with a momentum, which a schedule changes.
var cycled = map[string]func(in *nn.Initializer, ps autograd.Parameters) optim.Optimizer{
	"SGD": func(in *nn.Initializer, ps autograd.Parameters) optim.Optimizer {
		return nn.Own(in, optim.NewSGD(ps, optim.SGDConfig{}))
	},
	"Adam": func(in *nn.Initializer, ps autograd.Parameters) optim.Optimizer {
		return nn.Own(in, optim.NewAdam(ps, optim.AdamConfig{AMSGrad: true}))
	},
	"AdamW": func(in *nn.Initializer, ps autograd.Parameters) optim.Optimizer {
		return nn.Own(in, optim.NewAdamW(ps, optim.AdamConfig{WeightDecay: new(0.1)}))
	},
	"RMSprop": func(in *nn.Initializer, ps autograd.Parameters) optim.Optimizer {
		return nn.Own(in, optim.NewRMSprop(ps, optim.RMSpropConfig{Centered: true}))
	},
}

func newTraining(b *tapetest.Bench, seed uint64, optimizer string, steps int, options ...nn.InitOption) *training {
	in := nn.Init(b.Ctx, b.RT, append(options, nn.Seed(seed))...)
	tr := &training{b: b, in: in, data: loader.Sampler{Samples: 23, Batch: 4, Fields: []int64{1}, Shuffle: true, Seed: 7}}
	tr.model = nn.Sequential{in.Linear(3, 8), nn.ReLU{}, in.Linear(8, 1)}
	tr.opt = cycled[optimizer](in, tr.model.Parameters())
	require.NoError(b.T, in.Err())
	var err error
	tr.scheduler, err = optim.NewScheduler(tr.opt, optim.OneCycleLR{Max: 0.05, Steps: steps})
	require.NoError(b.T, err)
	return tr
}

func (tr *training) checkpoint() checkpoint.Checkpoint {
	return checkpoint.Checkpoint{Model: tr.model, Optimizer: tr.opt, Scheduler: tr.scheduler, Init: tr.in, State: &tr.at}
}

// step trains on a batch of the sampler, with noise from the initialiser.
func (tr *training) step() {
	t := tr.b.T
	samples := tr.data.Order(tr.at.Data.Epoch)[tr.at.Data.Batch*tr.data.Batch:]
	samples = samples[:min(len(samples), tr.data.Batch)]
	var x, y []float32
	for _, n := range samples {
		v := float64(n) / 23
		x = append(x, float32(v), float32(v*v), float32(0.1*tr.in.Rand().NormFloat64()))
		y = append(y, float32(math.Sin(3*v)))
	}
	for _, tape := range tr.in.Steps(1) { // its seed is the initialiser's
		y1 := tr.model.Forward(tape, tape.Dropout(autograd.Upload(tape, x, len(samples), 3), 0.2))
		loss := tape.Mean(tape.Square(tape.Sub(y1, autograd.Upload(tape, y, len(samples), 1)))).Keep()
		_, err := tape.Backward(loss)
		require.NoError(t, err)
		require.NoError(t, tr.opt.Step(tr.b.Ctx))
		tr.at.Loss = append(tr.at.Loss[max(0, len(tr.at.Loss)-20):], loss.Item())
	}
	require.NoError(t, errors.Join(tr.in.Err(), tr.opt.ZeroGrad(tr.b.Ctx), tr.scheduler.Step()))
	tr.at.Step++
	tr.at.Data = tr.data.Next(tr.at.Data)
}

func (tr *training) close() { require.NoError(tr.b.T, tr.in.Close()) }

// TestCheckpoint: a training that is saved, and loaded by another program, ends like one that never
// stopped.
func TestCheckpoint(t *testing.T) { checkCheckpoint(t) }

// TestBFloat16Checkpoint: a training that continues from a file ends bit for bit like one that
// never stopped, because the file has the float32 masters.
func TestBFloat16Checkpoint(t *testing.T) { checkCheckpoint(t, nn.ComputeDtype(tensor.BFloat16)) }

func checkCheckpoint(t *testing.T, options ...nn.InitOption) {
	b := tapetest.Open(t, 64<<20)
	const steps = 12
	for name := range cycled {
		path := filepath.Join(t.TempDir(), "c")
		whole := newTraining(b, 1, name, steps, options...)
		for whole.at.Step < steps {
			if whole.at.Step == 5 {
				require.NoError(t, whole.checkpoint().Save(b.Ctx, path))
			}
			whole.step()
		}
		rest := newTraining(b, 2, name, steps, options...)
		if name == "RMSprop" {
			rest.step() // moves the training to another state
		}
		require.NoError(t, rest.checkpoint().Load(b.Ctx, path))
		assert.Equal(t, 5, rest.at.Step)
		assert.Equal(t, 5, rest.scheduler.LastStep())
		for rest.at.Step < steps {
			rest.step()
		}
		assert.Equal(t, whole.at, rest.at, name)
		for i, p := range whole.model.Parameters() {
			assert.Equal(t, tapetest.Read[float32](b, p.Value()), tapetest.Read[float32](b, rest.model.Parameters()[i].Value()), name)
		}
		whole.close()
		rest.close()
	}
}

// TestCheckpointsThatAreWrong: loading invalid checkpoints returns clear errors and changes
// nothing.
func TestCheckpointsThatAreWrong(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	folder := t.TempDir()
	path := filepath.Join(folder, "c")
	tr := newTraining(b, 1, "Adam", 9)
	defer tr.close()
	require.ErrorIs(t, tr.checkpoint().Load(b.Ctx, path), fs.ErrNotExist)
	tr.step()
	require.NoError(t, tr.checkpoint().Save(b.Ctx, path))
	good, err := os.ReadFile(path)
	require.NoError(t, err)

	other := newTraining(b, 2, "Adam", 9)
	defer other.close()
	before := tapetest.Read[float32](b, other.model.Parameters()[0].Value())
	cut := filepath.Join(folder, "cut")
	for n := 0; n < len(good); n += 1 + len(good)/37 {
		require.NoError(t, os.WriteFile(cut, good[:n], 0o600))
		require.ErrorContains(t, other.checkpoint().Load(b.Ctx, cut), "not a safetensors file", "%d bytes", n)
	}
	require.NoError(t, os.WriteFile(cut, []byte("PK\x03\x04 something else entirely"), 0o600))
	require.ErrorContains(t, other.checkpoint().Load(b.Ctx, cut), "not a safetensors file")
	require.NoError(t, nn.SaveModel(b.Ctx, tr.model, cut))
	require.ErrorIs(t, other.checkpoint().Load(b.Ctx, cut), safetensors.ErrState)
	require.ErrorContains(t, other.checkpoint().Load(b.Ctx, cut), "the file is not a checkpoint")

	adamw := newTraining(b, 3, "AdamW", 9)
	defer adamw.close()
	require.ErrorContains(t, adamw.checkpoint().Load(b.Ctx, path), "the checkpoint's optimiser is Adam of 1 groups with 4 parameters, and this one AdamW")
	require.ErrorIs(t, checkpoint.Checkpoint{Model: nn.Sequential{tr.model[0]}}.Load(b.Ctx, path), safetensors.ErrState, "a model of fewer layers")
	require.ErrorContains(t, checkpoint.Checkpoint{Model: nn.Sequential{tr.model[0]}}.Load(b.Ctx, path), path)
	require.ErrorContains(t, checkpoint.Checkpoint{Model: tr.model, State: &struct{ Step string }{}}.Load(b.Ctx, path), "the checkpoint's state")
	half := struct {
		Step int
		Data string
	}{Step: -1}
	require.ErrorIs(t, checkpoint.Checkpoint{State: &half}.Load(b.Ctx, path), safetensors.ErrState)
	assert.Equal(t, -1, half.Step, "what comes before the field that does not fit")
	require.ErrorIs(t, checkpoint.Checkpoint{State: half}.Load(b.Ctx, path), autograd.ErrInvalid)
	require.ErrorIs(t, checkpoint.Checkpoint{State: (*int)(nil)}.Load(b.Ctx, path), autograd.ErrInvalid)
	require.ErrorIs(t, checkpoint.Checkpoint{Optimizer: (*optim.SGD)(nil)}.Load(b.Ctx, path), autograd.ErrInvalid)
	require.ErrorIs(t, checkpoint.Checkpoint{Optimizer: (*optim.SGD)(nil)}.Save(b.Ctx, path), autograd.ErrInvalid)
	require.Error(t, checkpoint.Checkpoint{State: func() {}}.Save(b.Ctx, path))
	short, err := optim.NewScheduler(other.opt, optim.StepLR{Size: 1})
	require.NoError(t, err)
	require.NoError(t, short.SetStep(3))
	require.NoError(t, checkpoint.Checkpoint{Model: tr.model}.Save(b.Ctx, cut))
	require.ErrorContains(t, checkpoint.Checkpoint{Scheduler: short}.Load(b.Ctx, cut), "the checkpoint has no scheduler")
	assert.Equal(t, before, tapetest.Read[float32](b, other.model.Parameters()[0].Value()))
	assert.Zero(t, other.at.Step)

	require.NoError(t, checkpoint.Checkpoint{Model: other.model}.Load(b.Ctx, path), "a part of a checkpoint")
	assert.Equal(t, tapetest.Read[float32](b, tr.model.Parameters()[0].Value()), tapetest.Read[float32](b, other.model.Parameters()[0].Value()))
	now, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, good, now, "a Save that failed leaves the old file")
}

// TestCheckpointOfLargeState: Load reads a large state that Save has written.
func TestCheckpointOfLargeState(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	path := filepath.Join(t.TempDir(), "c")
	state := strings.Repeat("a", tapetest.Rounds(safetensors.DefaultHeader, 1))
	require.NoError(t, checkpoint.Checkpoint{State: state}.Save(b.Ctx, path))
	if testing.Short() { // a header of the same size, of spaces, which are read much faster
		file, err := os.ReadFile(path)
		require.NoError(t, err)
		n := 8 + binary.LittleEndian.Uint64(file)
		spaces := bytes.Repeat([]byte{' '}, safetensors.DefaultHeader)
		large := binary.LittleEndian.AppendUint64(nil, n-8+uint64(len(spaces)))
		large = slices.Concat(large, file[8:n], spaces, file[n:])
		require.NoError(t, os.WriteFile(path, large, 0o600))
	}
	var loaded string
	require.NoError(t, checkpoint.Checkpoint{State: &loaded}.Load(b.Ctx, path))
	assert.Equal(t, len(state), len(loaded))
}

// TestCheckpointOfWhatIsNotFilled: state that Prepare allocated and no step has written is loaded
// as new.
func TestCheckpointOfWhatIsNotFilled(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	path := filepath.Join(t.TempDir(), "c")
	p := b.Number(1)
	make := func() *optim.SGD {
		o, err := tapetest.WithErr(optim.NewSGD(autograd.Parameters{{Name: "p", Parameter: p}}, optim.SGDConfig{LR: new(0.5), Momentum: 0.5, Dampening: 0.5}))
		require.NoError(t, err)
		require.NoError(t, o.Prepare(b.Ctx))
		return o
	}
	first, second := make(), make()
	require.NoError(t, checkpoint.Checkpoint{Optimizer: first}.Save(b.Ctx, path))
	require.NoError(t, checkpoint.Checkpoint{Optimizer: second}.Load(b.Ctx, path))
	b.Step(second, p, 1)
	assert.Equal(t, []float64{0.5}, tapetest.Read[float64](b, p.Value()), "a first step is not dampened")
	require.NoError(t, checkpoint.Checkpoint{Optimizer: second}.Save(b.Ctx, path))
	require.NoError(t, checkpoint.Checkpoint{Optimizer: first}.Load(b.Ctx, path))
	b.Step(first, p, 1)
	assert.Equal(t, []float64{0.5 - 0.5*(0.5+0.5)}, tapetest.Read[float64](b, p.Value()))
	require.NoError(t, errors.Join(first.Close(), second.Close()))
	text, err := json.Marshal(first.Record())
	require.NoError(t, err)
	assert.JSONEq(t, `{"Kind":"SGD","Groups":[{"Parameters":1,"LR":0.5,"Momentum":0.5}],"Steps":[0],"Tensors":[0]}`, string(text))
	assert.Equal(t, tensor.Float64, p.Value().Dtype())
}

// TestStateOfAnotherOptimizerIsRefused: if a file's record fits but the shape or number of its
// tensors does not, Load returns an error before the optimiser has changed.
func TestStateOfAnotherOptimizerIsRefused(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	path := filepath.Join(t.TempDir(), "c")
	p := b.Parameter(3)
	first, second := optim.NewAdam(autograd.Parameters{{Name: "p", Parameter: p}}, optim.AdamConfig{}), optim.NewAdam(autograd.Parameters{{Name: "p", Parameter: p}}, optim.AdamConfig{})
	b.Step(first, p, 1)
	require.NoError(t, checkpoint.Checkpoint{Optimizer: first}.Save(b.Ctx, path))
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	metadata := f.Metadata()
	require.NoError(t, f.Close())
	three, four := tapetest.Upload(b, []float64{1, 2, 3}), tapetest.Upload(b, []float64{1, 2, 3, 4})
	for what, tensors := range map[string][]safetensors.Named{
		"the first slot": {{Name: "optimizer.0.exp_avg", Tensor: four}, {Name: "optimizer.0.exp_avg_sq", Tensor: three}},
		"the last slot":  {{Name: "optimizer.0.exp_avg", Tensor: three}, {Name: "optimizer.0.exp_avg_sq", Tensor: four}},
		"one too few":    {{Name: "optimizer.0.exp_avg", Tensor: three}},
		"one too many":   {{Name: "optimizer.0.exp_avg", Tensor: three}, {Name: "optimizer.0.exp_avg_sq", Tensor: three}, {Name: "optimizer.1.exp_avg", Tensor: three}},
	} {
		require.NoError(t, safetensors.WriteFile(b.Ctx, path, tensors, metadata))
		require.ErrorIs(t, checkpoint.Checkpoint{Optimizer: second}.Load(b.Ctx, path), safetensors.ErrState, what)
		assert.Equal(t, []int{0}, second.Record().Steps, what)
		assert.Empty(t, second.State(0), what)
	}
	require.NoError(t, errors.Join(first.Close(), three.Release(), four.Release()))
}

// alike is a Ranks whose ranks all have the same numbers.
type alike struct{ rank, size int }

func (r alike) Rank() int                   { return r.rank }
func (r alike) Size() int                   { return r.size }
func (r alike) Check(context.Context) error { return nil }
func (r alike) Gather(_ context.Context, mine []int64) ([][]int64, error) {
	return slices.Repeat([][]int64{mine}, r.size), nil
}

// TestNewRanksDrawNumbersOfTheirOwn: ranks without a random state in the file draw other numbers
// than rank 0 and each other, and the same ones after each Load.
func TestNewRanksDrawNumbersOfTheirOwn(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	path := filepath.Join(t.TempDir(), "c")
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
	require.NoError(t, checkpoint.Checkpoint{Init: in}.Save(b.Ctx, path))
	want := in.Rand().Uint64()
	drawn := map[uint64]int{}
	for range 2 {
		for n := range 4 {
			require.NoError(t, checkpoint.Checkpoint{Init: in, Ranks: alike{n, 4}}.Load(b.Ctx, path))
			drawn[in.Rand().Uint64()]++
		}
	}
	require.Len(t, drawn, 4)
	require.Equal(t, 2, drawn[want], "of rank 0")
	require.NoError(t, in.Close())
}
