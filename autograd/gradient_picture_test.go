package autograd_test

import (
	"math/rand/v2"
	"testing"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

func TestGradientsOfPicturesAgainstFiniteDifferences(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	random := rand.New(rand.NewPCG(3, 4))
	for _, f := range pictureFunctions() {
		checkSlopes(b, f, random)
	}
}

// pictureFunctions are convolutions, pooling and normalisations, whose gradients are compared with differences.
func pictureFunctions() (fs []function) {
	add := func(name string, f func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable, shapes ...[]int) {
		fs = append(fs, function{name, shapes, f})
	}
	c := tensor.ConvConfig{Stride: []int{2, 1}, Padding: []int{1}, Dilation: []int{1, 2}, Groups: 2}
	add("Conv2d", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
		return t.Conv2d(v[0], v[1], v[2], c)
	}, []int{2, 2, 4, 5}, []int{4, 1, 2, 3}, []int{4})
	add("Conv2d of one image to the same size", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
		return t.Conv2d(v[0], v[1], nil, tensor.ConvConfig{Same: true})
	}, []int{1, 3, 4}, []int{2, 1, 2, 3})
	add("Conv1d of one sequence", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
		return t.Conv1d(v[0], v[1], v[2], tensor.ConvConfig{})
	},
		[]int{2, 5}, []int{3, 2, 2}, []int{3})
	wider := c
	wider.OutputPadding = []int{1}
	add("ConvTranspose2d", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
		return t.ConvTranspose2d(v[0], v[1], v[2], wider)
	}, []int{2, 4, 2, 3}, []int{4, 1, 2, 3}, []int{2})
	add("ConvTranspose1d", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
		return t.ConvTranspose1d(v[0], v[1], v[2], tensor.ConvConfig{})
	},
		[]int{1, 2, 3}, []int{2, 2, 2}, []int{2})
	p := tensor.PoolingConfig{Kernel: []int{2, 3}, Stride: []int{1, 2}, Padding: []int{1}, Ceil: true}
	add("MaxPool2d", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable { return t.MaxPool2d(v[0], p) }, []int{2, 2, 3, 4})
	add("AvgPool2d", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable { return t.AvgPool2d(v[0], p) }, []int{2, 2, 3, 4})
	add("AdaptiveAvgPool2d", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
		return t.AdaptiveAvgPool2d(v[0], 2, -1)
	}, []int{2, 3, 4})
	row := tensor.PoolingConfig{Kernel: []int{2}, Stride: []int{1}}
	add("MaxPool1d", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable { return t.MaxPool1d(v[0], row) }, []int{2, 2, 4})
	add("AvgPool1d", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable { return t.AvgPool1d(v[0], row) }, []int{2, 4})
	add("AdaptiveAvgPool1d", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable { return t.AdaptiveAvgPool1d(v[0], 3) }, []int{2, 2, 4})
	batch := tensor.BatchNormConfig{Training: true}
	add("BatchNorm", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
		return t.BatchNorm(v[0], v[1], v[2], batch)
	}, []int{3, 2, 2}, []int{2}, []int{2})
	add("BatchNorm with a bias alone", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
		return t.BatchNorm(v[0], nil, v[1], batch)
	}, []int{3, 2}, []int{2})
	add("BatchNorm whose gradient two share", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
		return t.Add(t.BatchNorm(v[0], nil, nil, batch), v[0])
	}, []int{3, 2})
	add("LayerNorm", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
		return t.LayerNorm(v[0], v[1], v[2], 1e-3, 2, 3)
	}, []int{2, 2, 3}, []int{2, 3}, []int{2, 3})
	add("GroupNorm", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
		return t.GroupNorm(v[0], v[1], v[2], 2, 0.1)
	}, []int{2, 4, 3}, []int{4}, []int{4})
	add("RMSNorm", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable { return t.RMSNorm(v[0], v[1], 0, 3) }, []int{2, 3}, []int{3})
	add("Dropout", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
		t.SetSeed(1)
		return t.Add(t.Dropout(v[0], 0.4), t.Dropout(v[0], 0.6))
	}, []int{3, 5})
	for _, resize := range []tensor.InterpolateConfig{{Size: []int{3, 7}}, {Size: []int{5, 2}, Bilinear: true}, {ScaleFactor: []float64{1.7}, Bilinear: true, AlignCorners: true}} {
		add("Interpolate", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable { return t.Interpolate(v[0], resize) }, []int{2, 1, 3, 4})
	}
	before, after := []int{0, 1, 0}, []int{0, 1, 3}
	add("ReflectionPad", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
		return t.ReflectionPad(v[0], before, after)
	}, []int{2, 3, 4})
	add("ReplicationPad", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
		return t.ReplicationPad(v[0], before, after)
	}, []int{2, 3, 4})
	add("PReLU", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable { return t.PReLU(v[0], v[1]) }, []int{2, 3, 2}, []int{3})
	add("PReLU whose gradient two share", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
		return t.Add(t.PReLU(v[0], v[1]), v[0])
	}, []int{4}, []int{1})
	add("Dropout2d", func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
		t.SetSeed(1)
		return t.Add(t.Dropout2d(v[0], 0.4), t.Add(t.Dropout2d(v[0], 0.6), v[0]))
	}, []int{3, 5, 2})
	return fs
}
