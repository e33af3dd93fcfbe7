package autograd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/tensor"
)

// normed is a layer with a buffer.
type normed struct {
	Weight *Parameter
	Mean   *tensor.Tensor `buffer:"running_mean"`
}

func (normed) Forward(_ *Tape, x *Variable) *Variable { return x }

func (b *bench) statefulModel(from float64) Layer {
	return Sequential{
		&Linear{Weight: &Parameter{value: upload(b, []float64{from, from + 1}, 1, 2)}},
		LayerOf(&normed{b.number(from + 2), upload(b, []float64{from + 3})}),
	}
}

func (b *bench) values(model any) (all []float64) {
	state, err := StateDict(model)
	require.NoError(b.t, err)
	for _, t := range state {
		all = append(all, read[float64](b, t.Tensor)...)
	}
	return all
}

// TestSaveAndLoadModel: parameters and buffers, into a model that was made otherwise.
func TestSaveAndLoadModel(t *testing.T) {
	b := open(t, 64<<20)
	path := filepath.Join(t.TempDir(), "m.safetensors")
	require.NoError(t, SaveModel(b.ctx, b.statefulModel(1), path))
	other := b.statefulModel(10)
	version := other.Parameters()[0].Value().Version()
	require.NoError(t, LoadModel(b.ctx, other, path))
	assert.Equal(t, []float64{1, 2, 3, 4}, b.values(other))
	assert.Greater(t, other.Parameters()[0].Value().Version(), version, "a tape would notice")
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"format": "pt"}, f.Metadata())
	require.NoError(t, LoadStateDict(b.ctx, other, f))
	require.ErrorContains(t, LoadStateDict(b.ctx, struct{ A *Parameter }{b.number(1)}, f), "autograd: LoadStateDict: error(s) in loading")
	require.NoError(t, f.Close())
	require.ErrorIs(t, LoadStateDict(b.ctx, other, nil), ErrInvalid)
	require.ErrorIs(t, LoadModel(b.ctx, nil, path), ErrInvalid)
	require.ErrorIs(t, SaveModel(b.ctx, nil, path), ErrInvalid, "an empty file would take the place of a good one")

	// Other names and shapes are told of together, and change nothing.
	wrong := Sequential{&Linear{Weight: &Parameter{value: upload(b, []float64{5}, 1, 1)}, Bias: b.number(6)}}
	err = LoadModel(b.ctx, wrong, path)
	require.ErrorIs(t, err, ErrState)
	require.EqualError(t, err, `autograd: LoadModel: `+path+`: error(s) in loading state_dict: missing key(s) in state_dict: "0.bias"; `+
		`unexpected key(s) in state_dict: "1.running_mean", "1.weight"; size mismatch for 0.weight: the file has F64 (1, 2), and the model float64 (1, 1)`)
	require.ErrorIs(t, LoadModel(b.ctx, wrong, path, NotStrict()), ErrState, "a shape must fit in any case")
	lax := Sequential{&Linear{Weight: &Parameter{value: upload(b, []float64{0, 0}, 1, 2)}, Bias: b.number(6)}}
	require.NoError(t, LoadModel(b.ctx, lax, path, NotStrict()))
	assert.Equal(t, []float64{1, 2, 6}, b.values(lax))
	narrow := Sequential{&Linear{Weight: &Parameter{value: upload(b, []float32{0, 0}, 1, 2)}}}
	require.ErrorContains(t, LoadModel(b.ctx, narrow, path, NotStrict()), "float32")

	require.ErrorIs(t, LoadModel(b.ctx, other, path+"x"), os.ErrNotExist)
	require.ErrorIs(t, SaveModel(b.ctx, Sequential{&Linear{}}, path), ErrInvalid)
	require.ErrorIs(t, SaveModel(b.ctx, struct{ A, B *normed }{}, filepath.Join(path+"none", "x")), os.ErrNotExist)
}

// TestLoadTiedWeights: a file with one of the names is enough.
func TestLoadTiedWeights(t *testing.T) {
	b := open(t, 64<<20)
	type model struct{ Tok, Head *Parameter }
	path := filepath.Join(t.TempDir(), "m.safetensors")
	require.NoError(t, SaveModel(b.ctx, struct{ Tok *Parameter }{b.number(7)}, path))
	tied := model{Tok: b.number(1)}
	tied.Head = tied.Tok
	require.NoError(t, LoadModel(b.ctx, tied, path))
	assert.Equal(t, []float64{7, 7}, b.values(tied))
	require.ErrorContains(t, LoadModel(b.ctx, model{b.number(1), b.number(2)}, path), `missing key(s) in state_dict: "head"`)
	require.NoError(t, SaveModel(b.ctx, tied, path))
	require.NoError(t, LoadModel(b.ctx, tied, path))
}
