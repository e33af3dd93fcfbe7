package autograd

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
)

// TestOffloadOfParametersOfEveryLayer: each kind of layer finds its parameters, in training, in inference, and frozen, to the bit.
func TestOffloadOfParametersOfEveryLayer(t *testing.T) {
	b := open(t, 64<<20)
	o := b.offloader(tensor.OffloadConfig{})
	models := map[string]func(*Initializer) Sequential{
		"picture": func(in *Initializer) Sequential {
			return Sequential{in.Conv2d(2, 4, 3), in.BatchNorm(4), ReLU{}, in.GroupNorm(2, 4), in.Conv2d(4, 2, 1), Flatten{}, in.Linear(2*4*4, 3), ReLU{}, in.Linear(3, 2)}
		},
		"sequence": func(in *Initializer) Sequential {
			return Sequential{in.LSTM(4, 4, Layers(2), Bidirectional()), in.GRU(8, 4), in.RNN(4, 4), in.MultiHeadAttention(4, 2), in.LayerNorm(4), in.RMSNorm(4), in.Linear(4, 4)}
		},
	}
	shapes := map[string][]int{"picture": {3, 2, 6, 6}, "sequence": {5, 3, 4}}
	for name, make := range models {
		for _, half := range []bool{false, true} {
			run := func(split int, frozen bool) (got [][]float32) {
				in := Init(b.ctx, b.rt, Seed(2))
				model := make(in)
				data := make64(tensor.Shape(shapes[name]).TotalSize(), 0.3)
				x := in.Tensor(data, shapes[name]...)
				require.NoError(t, in.Err())
				for _, l := range model {
					ps := l.Parameters()
					for i := 0; split > 0 && i < len(ps); i += split {
						require.NoError(t, ps[i:min(i+split, len(ps))].Offload(b.ctx, o))
					}
				}
				model[0].Parameters().SetRequiresGrad(!frozen)
				tapes := []*Tape{NewTape(b.ctx, b.rt), NewTape(b.ctx, b.rt), NoGrad(b.ctx, b.rt)}
				for _, tape := range tapes {
					if half {
						tape.SetComputeDtype(tensor.BFloat16)
					}
					y := tape.Cast(model.Forward(tape, tape.Input(x)), tensor.Float32).Keep()
					if tape.record {
						_, err := tape.Backward(tape.Mean(tape.Square(y)))
						require.NoError(t, err)
					}
					require.NoError(t, tape.Err(), name)
					got = append(got, read[float32](b, y.Value()))
					require.NoError(t, tape.Close())
				}
				for _, p := range model.Parameters() {
					if p.Grad() == nil {
						got = append(got, nil)
						continue
					}
					got = append(got, b.wide32(p.Grad()))
				}
				require.NoError(t, in.Close())
				return got
			}
			for _, frozen := range []bool{false, true} {
				want := run(0, frozen)
				for _, split := range []int{1, 2, 100} {
					require.Equal(t, want, run(split, frozen), "%s, groups of %d, bfloat16 %v, frozen %v", name, split, half, frozen)
				}
			}
		}
	}
}

// wide32 is the elements of a gradient in float32.
func (b *bench) wide32(g *tensor.Tensor) []float32 {
	b.t.Helper()
	if g.Dtype() == tensor.Float32 {
		return read[float32](b, g)
	}
	w, err := b.rt.Convert(b.ctx, g, tensor.Float32)
	require.NoError(b.t, err)
	defer w.Release()
	return read[float32](b, w)
}
