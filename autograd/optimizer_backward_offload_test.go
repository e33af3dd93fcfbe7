package autograd

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
)

// TestMinimizeInBackwardOfOffloadedParameters: a layer's parameters are updated while those of the next one are on their way, and numbers are Minimize's.
func TestMinimizeInBackwardOfOffloadedParameters(t *testing.T) {
	b := open(t, 64<<20)
	o := b.offloader(tensor.OffloadConfig{})
	for _, half := range []bool{false, true} {
		for _, optimizer := range []string{"momentum", "AdamW"} {
			train := func(offloaded bool, piece int64) (all [][]float64, early int64) {
				in, model := b.wide(5, func(ps Parameters) {
					if offloaded {
						require.NoError(t, ps.Offload(b.ctx, o))
					}
				})
				var opt Optimizer
				var err error
				if optimizer == "AdamW" {
					opt, err = NewAdamW(model.Parameters(), AdamConfig{})
				} else {
					opt, err = NewSGD(model.Parameters(), SGDConfig{LR: new(0.1), Momentum: 0.9})
				}
				require.NoError(t, err)
				values := make([]float64, 3*wideWidth)
				for i := range values {
					values[i] = math.Sin(float64(i))
				}
				x := in.Tensor(values, 3, wideWidth)
				for range rounds(4, 2) {
					tape := NewTape(b.ctx, b.rt)
					if half {
						tape.SetComputeDtype(tensor.BFloat16)
					}
					loss := tape.Mean(tape.Square(model.Forward(tape, tape.Input(x))))
					if offloaded {
						tape.MinimizeInBackward(loss, opt, piece)
					} else {
						tape.Minimize(loss, opt)
					}
					require.NoError(t, tape.Close())
				}
				require.NoError(t, model.Parameters().Offload(b.ctx, nil))
				for _, p := range model.Parameters() {
					require.Nil(t, p.Grad())
					all = append(all, b.widened(p.Value()))
				}
				require.NoError(t, errors.Join(opt.Close(), in.Close()))
				return all, o.Stats().Prefetched
			}
			want, _ := train(false, 0)
			for _, piece := range []int64{1, 3 * wideLayer, 0} {
				before := o.Stats().Prefetched
				got, after := train(true, piece)
				require.Equal(t, want, got, "%s, bfloat16 %v, pieces of %d bytes", optimizer, half, piece)
				require.Greater(t, after, before, "parameters came ahead of their use")
			}
		}
	}
}
