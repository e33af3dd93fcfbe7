package autograd_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// The tape itself checks these shapes. Those that just fit are computed, the next ones are refused.
func TestShapesThatJustFit(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	type vars = []*autograd.Variable
	bmm := func(t *autograd.Tape, v vars) *autograd.Variable { return t.BMM(v[0], v[1]) }
	grouped := func(t *autograd.Tape, v vars) *autograd.Variable {
		return t.ScaledDotProductAttention(v[0], v[1], v[2], autograd.AttentionConfig{GQA: true})
	}
	soft := func(t *autograd.Tape, v vars) *autograd.Variable { return t.CrossEntropy(v[0], v[1].Value()) }
	weighted := func(t *autograd.Tape, v vars) *autograd.Variable {
		return t.CrossEntropy(v[0], v[1].Value(), tensor.Weight(v[2].Value()))
	}
	squeeze := func(axis int) func(t *autograd.Tape, v vars) *autograd.Variable {
		return func(t *autograd.Tape, v vars) *autograd.Variable { return t.Squeeze(v[0], axis) }
	}
	flatten := func(first, last int) func(t *autograd.Tape, v vars) *autograd.Variable {
		return func(t *autograd.Tape, v vars) *autograd.Variable { return t.Flatten(v[0], first, last) }
	}
	split := func(sizes ...int) func(t *autograd.Tape, v vars) *autograd.Variable {
		return func(t *autograd.Tape, v vars) *autograd.Variable { return t.Split(v[0], 1, sizes...)[0] }
	}
	type shapes = [][]int
	for name, c := range map[string]struct {
		f       func(t *autograd.Tape, v vars) *autograd.Variable
		fit     []shapes
		refused []shapes
	}{
		"BMM": {bmm, []shapes{{{2, 3, 4}, {2, 4, 5}}, {{1, 3, 4}, {1, 4, 5}}},
			[]shapes{{{2, 3, 4}, {1, 4, 5}}, {{1, 3, 4}, {2, 4, 5}}, {{3, 4}, {2, 4, 5}}, {{2, 3, 4}, {4, 5}}, {{2, 3, 4}, {2, 2, 4, 5}}, {{2, 2, 3, 4}, {2, 4, 5}}, {{3, 4}, {4, 5}}}},
		"attention of shared heads": {grouped, []shapes{{{4, 3, 2}, {2, 5, 2}, {2, 5, 6}}, {{1, 4, 3, 2}, {1, 1, 5, 2}, {1, 1, 5, 6}}, {{0, 3, 2}, {2, 5, 2}, {2, 5, 6}}},
			[]shapes{{{3, 3, 2}, {2, 5, 2}, {2, 5, 6}}, {{4, 3, 2}, {2, 5, 2}, {1, 5, 6}}, {{4, 3, 2}, {0, 5, 2}, {0, 5, 6}}, {{3, 2}, {5, 2}, {5, 6}}, {{4, 3, 2}, {5, 2}, {2, 5, 6}}, {{4, 3, 2}, {2, 5, 2}, {5, 6}}, {{1, 4, 3, 2}, {2, 5, 2}, {2, 5, 6}}}},
		"CrossEntropy of probabilities": {soft, []shapes{{{2, 3}, {2, 3}}, {{3}, {3}}, {{2, 3, 4}, {2, 3, 4}}}, []shapes{{{2, 3}, {2, 4}}, {{2, 3}, {3}}, {{2, 3}, {2, 3, 1}}}},
		"CrossEntropy by weights":       {weighted, []shapes{{{2, 3}, {2, 3}, {3}}, {{3}, {3}, {3}}}, []shapes{{{2, 3}, {2, 3}, {2}}, {{2, 3}, {2, 3}, {1, 3}}, {{3}, {3}, {1}}}},
		"Squeeze first":                 {squeeze(-2), []shapes{{{1, 3}}, {{2, 3}}}, []shapes{{{3}}}},
		"Squeeze last":                  {squeeze(1), []shapes{{{3, 1}}, {{3, 2}}}, []shapes{{{3}}}},
		"Flatten":                       {flatten(1, 2), []shapes{{{2, 3, 4}}, {{2, 3, 4, 5}}}, []shapes{{{2, 3}}, {{2}}}},
		"Flatten from the end":          {flatten(-2, -1), []shapes{{{2, 3}}}, []shapes{{{2}}}},
		"Flatten of one":                {flatten(1, 1), []shapes{{{2, 3}}}, []shapes{{{2}}}},
		"Flatten backwards":             {flatten(1, 0), nil, []shapes{{{2, 3}}}},
		"Split":                         {split(1, 2), []shapes{{{2, 3}}}, []shapes{{{2, 2}}, {{2, 4}}, {{3}}}},
		"Split of one size":             {split(2), []shapes{{{2, 3}}, {{2, 2}}, {{2, 0}}}, []shapes{{{2}}}},
		"Split of less than nothing":    {split(4, -1), nil, []shapes{{{2, 3}}}},
	} {
		try := func(all [][]int) (shape tensor.Shape, err error) {
			tape := autograd.NewTape(b.Ctx, b.RT)
			var vs vars
			for _, shape := range all {
				x, err := b.RT.Zeros(b.Ctx, tensor.Float64, shape...)
				require.NoError(t, err)
				vs = append(vs, tape.Leaf(x))
				require.NoError(t, x.Release())
			}
			shape, err = c.f(tape, vs).Shape(), tape.Err()
			require.Equal(t, err, tape.Close())
			return shape, err
		}
		for _, shapes := range c.fit {
			shape, err := try(shapes)
			require.NoError(t, err, "%s of %v", name, shapes)
			require.NotNil(t, shape, "%s of %v", name, shapes)
		}
		for _, shapes := range c.refused {
			_, err := try(shapes)
			require.ErrorIs(t, err, tensor.ErrShape, "%s of %v", name, shapes)
		}
	}
}

// Labels that are neither labels nor probabilities are refused by their dtype.
func TestCrossEntropyOfOneNumber(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	one := tapetest.Upload(b, []float64{1})
	scalar, err := b.RT.Reshape(b.Ctx, one)
	require.NoError(t, err)
	for _, logits := range []*tensor.Tensor{one, scalar} {
		for labels, want := range map[*tensor.Tensor]error{scalar: tensor.ErrDtype, nil: tensor.ErrInvalid} {
			tape := autograd.NewTape(b.Ctx, b.RT)
			tape.CrossEntropy(tape.Leaf(logits), labels)
			require.ErrorIs(t, tape.Close(), want, "%v", labels)
		}
	}
	require.NoError(t, scalar.Release())
}
