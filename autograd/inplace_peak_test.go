package autograd_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// onceGPT is runGPT with its sums and activations in place, as a tape of NoGrad computes them.
type onceGPT struct{ *runGPT }

func (m onceGPT) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		h := t.Add(m.Tok.Forward(t, x).Once(), t.Narrow(t.Param(m.Pos.Weight), 0, 0, x.Shape()[1]))
		for _, b := range m.Blocks {
			a := nn.Sequential{b.Ln1, b.Qkv}.Forward(t, h)
			a = t.SelfAttention(a.Once(), 4, true, autograd.AttentionConfig{Causal: true})
			h = t.Add(h.Once(), nn.Sequential{b.Proj}.Forward(t, a).Once())
			h = t.Add(h.Once(), nn.Sequential{b.Ln2, b.Fc, nn.GELU{Tanh: true}, b.Out}.Forward(t, h).Once())
		}
		return t.Linear(m.Ln.Forward(t, h), t.Param(m.Tok.Weight), nil)
	})
}

// onceResNet is runResNet with its sums and activations in place.
type onceResNet struct{ *runResNet }

func (m onceResNet) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		h := nn.Sequential{m.C0, m.B0, nn.ReLU{}}.Forward(t, x)
		y := nn.Sequential{m.C1, m.B1, nn.ReLU{}, m.C2, m.B2}.Forward(t, h)
		y = t.ReLU(t.Add(h, y.Once()).Once())
		return m.Fc.Forward(t, nn.Flatten{}.Forward(t, t.AdaptiveAvgPool2d(y, 1)))
	})
}

// TestInPlacePeaks: the peaks in bytes of a forward pass with and without a backward pass, and of a
// training step, are not larger in place than out of place. In some models they are smaller by a
// given minimum.
func TestInPlacePeaks(t *testing.T) {
	b := tapetest.Open(t, 1<<30)
	shapes := func(sizes map[string][]int) func(string) []int { return func(name string) []int { return sizes[name] } }
	cnn := shapes(map[string][]int{"0.weight": {32, 1, 3, 3}, "2.weight": {64, 32, 3, 3}, "6.weight": {128, 9216}, "8.weight": {10, 128}})
	resnet := shapes(map[string][]int{"c0.weight": {16, 1, 3, 3}, "c1.weight": {16, 16, 3, 3}, "c2.weight": {16, 16, 3, 3}, "b0.weight": {16}, "b1.weight": {16}, "b2.weight": {16}, "fc.weight": {10, 16}})
	gpt := shapes(map[string][]int{"tok.weight": {65, 64}, "pos.weight": {32, 64}})
	type peaks struct{ used, forward, step int64 }
	pictures := tapetest.Rounds(16, 8)
	less := func(full, short int) int64 { return int64(tapetest.Rounds(full, short)) }
	for _, m := range []struct {
		name  string
		model func(in *nn.Initializer) runModel
		input []int
		less  peaks
	}{
		{"mlp", func(in *nn.Initializer) runModel { return newRunMLP(in, nil) }, []int{128, 784}, peaks{}},
		{"cnn", func(in *nn.Initializer) runModel { return newRunCNN(in, cnn) }, []int{pictures, 1, 28, 28}, peaks{used: less(1<<20, 128<<10), forward: less(1<<20, 512<<10)}},
		{"resnet", func(in *nn.Initializer) runModel { return newRunResNet(in, resnet) }, []int{pictures, 1, 28, 28}, peaks{}},
		{"resnet, Once", func(in *nn.Initializer) runModel { return onceResNet{newRunResNet(in, resnet).(*runResNet)} }, []int{pictures, 1, 28, 28}, peaks{forward: less(750<<10, 375<<10)}},
		{"gpt", func(in *nn.Initializer) runModel { return newRunGPT(in, gpt) }, []int{4, 32}, peaks{}},
		{"gpt, Once", func(in *nn.Initializer) runModel { return onceGPT{newRunGPT(in, gpt).(*runGPT)} }, []int{4, 32}, peaks{used: 96 << 10}},
	} {
		in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
		model := m.model(in)
		require.NoError(t, in.Err())
		var x *tensor.Tensor
		if n := tapetest.Elements(m.input); len(m.input) == 2 && m.input[1] == 32 {
			x = tapetest.Upload(b, make([]int32, n), m.input...)
		} else {
			x = tapetest.Upload(b, make([]float32, n), m.input...)
		}
		peak := func(record, outOfPlace bool) (forward, step int64) {
			require.NoError(t, b.RT.Synchronize(b.Ctx))
			b.Cache.ResetPeakStats()
			before := b.Cache.MemoryAllocated()
			tape := tapetest.NewTape(b.Ctx, b.RT, record)
			autograd.SetOutOfPlace(tape, outOfPlace)
			y := model.Forward(tape, tape.Input(x))
			forward = b.Cache.MaxMemoryAllocated() - before
			if record {
				_, err := tape.Backward(tape.Sum(tape.Square(y)))
				require.NoError(t, err)
				require.NoError(t, nn.ParametersOf(model).ZeroGrad(b.Ctx))
			}
			require.NoError(t, tape.Close())
			return forward, b.Cache.MaxMemoryAllocated() - before
		}
		peaksOf := func(outOfPlace bool) (p peaks) {
			p.used, _ = peak(false, outOfPlace)
			p.forward, p.step = peak(true, outOfPlace)
			return p
		}
		peaksOf(true) // the runtime's own memory is there now
		apart, inPlace := peaksOf(true), peaksOf(false)
		t.Logf("%s: %+v out of place, %+v in place", m.name, apart, inPlace)
		if cisterntest.Named() != "" { // the scratch of operations depends on the device
			m.less = peaks{}
		}
		assert.LessOrEqual(t, inPlace.used, apart.used-m.less.used, m.name)
		assert.LessOrEqual(t, inPlace.forward, apart.forward-m.less.forward, m.name)
		assert.LessOrEqual(t, inPlace.step, apart.step-m.less.step, m.name)
		require.NoError(t, in.Close())
	}
}
