package nn_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/checkpoint"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// normed is a layer with a buffer.
type normed struct {
	Weight *autograd.Parameter
	Mean   *tensor.Tensor `buffer:"running_mean"`
}

func (normed) Forward(_ *autograd.Tape, x *autograd.Variable) *autograd.Variable { return x }

func statefulModel(b *tapetest.Bench, from float64) nn.Layer {
	return nn.Sequential{
		&nn.Linear{Weight: b.ParameterOf(tapetest.Upload(b, []float64{from, from + 1}, 1, 2))},
		nn.LayerOf(&normed{b.Number(from + 2), tapetest.Upload(b, []float64{from + 3})}),
	}
}

func values(b *tapetest.Bench, model any) (all []float64) {
	state, err := nn.StateDict(model)
	require.NoError(b.T, err)
	for _, t := range state {
		all = append(all, tapetest.Read[float64](b, t.Tensor)...)
	}
	return all
}

// TestSaveAndLoadModel: parameters and buffers are loaded into a model with other values.
func TestSaveAndLoadModel(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	path := filepath.Join(t.TempDir(), "m.safetensors")
	require.NoError(t, nn.SaveModel(b.Ctx, statefulModel(b, 1), path))
	other := statefulModel(b, 10)
	version := other.Parameters()[0].Value().Version()
	require.NoError(t, nn.LoadModel(b.Ctx, other, path))
	assert.Equal(t, []float64{1, 2, 3, 4}, values(b, other))
	assert.Greater(t, other.Parameters()[0].Value().Version(), version, "a tape would notice")
	assert.Equal(t, other.Parameters()[0].Name, other.Parameters()[0].Parameter.Name(), "modules are named, as by LoadWeights")
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"format": "pt"}, f.Metadata())
	require.NoError(t, f.Close())
	require.ErrorIs(t, nn.LoadModel(b.Ctx, nil, path), autograd.ErrInvalid)
	require.ErrorIs(t, nn.SaveModel(b.Ctx, nil, path), autograd.ErrInvalid, "an empty file would take the place of a good one")

	// One error lists other names and shapes, and nothing changes.
	wrong := nn.Sequential{&nn.Linear{Weight: b.ParameterOf(tapetest.Upload(b, []float64{5}, 1, 1)), Bias: b.Number(6)}}
	err = nn.LoadModel(b.Ctx, wrong, path)
	require.ErrorIs(t, err, safetensors.ErrState)
	require.EqualError(t, err, `nn: LoadModel: `+path+`: error(s) in loading state_dict: missing 1 of the model's 2 names: "0.bias"; `+
		`unexpected 2 of the source's 3 names: "1.running_mean", "1.weight"; 1 of another shape or dtype: 0.weight: F64 (1, 2), as float64 (1, 1)`)

	require.ErrorIs(t, nn.LoadModel(b.Ctx, other, path+"x"), os.ErrNotExist)
	require.ErrorIs(t, nn.SaveModel(b.Ctx, nn.Sequential{&nn.Linear{}}, path), autograd.ErrInvalid)
	require.ErrorIs(t, nn.SaveModel(b.Ctx, struct{ A, B *normed }{}, filepath.Join(path+"none", "x")), os.ErrNotExist)
}

// TestLoadTiedWeights: a file with one of the names is enough.
func TestLoadTiedWeights(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	type model struct{ Tok, Head *autograd.Parameter }
	path := filepath.Join(t.TempDir(), "m.safetensors")
	require.NoError(t, nn.SaveModel(b.Ctx, struct{ Tok *autograd.Parameter }{b.Number(7)}, path))
	tied := model{Tok: b.Number(1)}
	tied.Head = tied.Tok
	require.NoError(t, nn.LoadModel(b.Ctx, tied, path))
	assert.Equal(t, []float64{7, 7}, values(b, tied))
	require.ErrorContains(t, nn.LoadModel(b.Ctx, model{b.Number(1), b.Number(2)}, path), `missing 1 of the model's 2 names: "head"`)
	require.NoError(t, nn.SaveModel(b.Ctx, tied, path))
	require.NoError(t, nn.LoadModel(b.Ctx, tied, path))
}

// TestStateDictOfBFloat16: a file has half the size, and is loaded bit-identical, also into
// float32.
func TestStateDictOfBFloat16(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	type served struct {
		Weight *tensor.Tensor `buffer:"weight"`
		Bias   *tensor.Tensor `buffer:"bias"`
	}
	bits := []tensor.BF16{0x3f80, 0x8000, 0x7fc1, 0xff81, 0xff80, 0x0001}
	path := filepath.Join(t.TempDir(), "m.safetensors")
	require.NoError(t, nn.SaveModel(b.Ctx, served{tapetest.Upload(b, bits, 2, 3), tapetest.Upload(b, []float32{7})}, path))
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	info, ok := f.Info("weight")
	require.True(t, ok)
	require.Equal(t, safetensors.Info{Name: "weight", Dtype: "BF16", Shape: []int{2, 3}, Begin: 4, Bytes: 12}, info)
	require.NoError(t, f.Close())

	same := served{tapetest.Upload(b, make([]tensor.BF16, 6), 2, 3), tapetest.Upload(b, []float32{0})}
	require.NoError(t, nn.LoadModel(b.Ctx, same, path))
	assert.Equal(t, bits, tapetest.Read[tensor.BF16](b, same.Weight))
	trained := struct{ Weight, Bias *autograd.Parameter }{b.ParameterOf(tapetest.Upload(b, make([]float32, 6), 2, 3)), b.ParameterOf(tapetest.Upload(b, []float32{0}))}
	require.NoError(t, nn.LoadModel(b.Ctx, trained, path))
	for i, v := range tapetest.Read[float32](b, trained.Weight.Value()) {
		assert.Equal(t, uint32(bits[i])<<16, math.Float32bits(v))
	}
}

// TestLoadModelOfOlderFiles: the strict load takes what PyTorch's takes: a batch norm without the
// number of its batches, which stays, and scalars that are vectors. Other buffers must be there.
func TestLoadModelOfOlderFiles(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT)
	defer func() { require.NoError(t, in.Close()) }()
	model := struct {
		Body  nn.Sequential
		Scale *autograd.Parameter
	}{nn.Sequential{in.Conv2d(1, 2, 1), in.BatchNorm(2)}, in.Parameter([]float64{3})}
	scalar, err := b.RT.Reshape(b.Ctx, model.Scale.Value())
	require.NoError(t, err)
	model.Scale = b.ParameterOf(scalar)
	defer func() { require.NoError(t, scalar.Release()) }()
	norm := model.Body[1].(*nn.BatchNorm)
	require.NoError(t, errors.Join(in.Err(), tensor.CopyFrom(b.Ctx, norm.Batches, []int64{7})))
	write := func(change func(*safetensors.Named) (keep bool)) string {
		state, err := nn.StateDict(model)
		require.NoError(t, err)
		var named []safetensors.Named
		for _, s := range state {
			n := safetensors.Named(s)
			if change(&n) {
				named = append(named, n)
			}
		}
		path := filepath.Join(t.TempDir(), "m.safetensors")
		require.NoError(t, safetensors.WriteFile(b.Ctx, path, named, nil))
		return path
	}
	without := func(name string) func(*safetensors.Named) bool {
		return func(n *safetensors.Named) bool { return n.Name != name }
	}
	old := write(func(n *safetensors.Named) bool {
		if n.Name == "scale" {
			n.Tensor = tapetest.Upload(b, []float32{5}, 1)
		}
		return n.Name != "body.1.num_batches_tracked"
	})
	require.NoError(t, nn.LoadModel(b.Ctx, model, old))
	require.Equal(t, []int64{7}, tapetest.Read[int64](b, norm.Batches))
	require.Equal(t, []float32{5}, tapetest.Read[float32](b, scalar))
	require.ErrorContains(t, nn.LoadModel(b.Ctx, model, write(without("body.1.running_mean"))), `: "body.1.running_mean"`)
	vector := write(func(n *safetensors.Named) bool {
		if n.Name == "body.1.num_batches_tracked" {
			n.Tensor = tapetest.Upload(b, []int64{9}, 1)
		}
		return true
	})
	require.NoError(t, nn.LoadModel(b.Ctx, model, vector))
	require.Equal(t, []int64{9}, tapetest.Read[int64](b, norm.Batches))
	require.Zero(t, scalar.Rank())

	fixed := model
	fixed.Body = nn.Sequential{model.Body[0], &nn.BatchNorm{Weight: norm.Weight, Bias: norm.Bias, Mean: norm.Mean, Var: norm.Var}}
	require.ErrorContains(t, nn.LoadModel(b.Ctx, fixed, vector), `unexpected 1 of the source's 8 names: "body.1.num_batches_tracked"`)
	require.NoError(t, nn.LoadModel(b.Ctx, fixed, old))

	// A checkpoint is a file of this package, which has the number.
	path := filepath.Join(t.TempDir(), "c.safetensors")
	require.NoError(t, checkpoint.Checkpoint{Model: fixed}.Save(b.Ctx, path))
	require.ErrorContains(t, checkpoint.Checkpoint{Model: model}.Load(b.Ctx, path), "num_batches_tracked")
}
