package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
	"github.com/cistern-ml/cistern/examples/mnist/internal/models"
	"github.com/cistern-ml/cistern/tensor"
)

// TestGraphsTrainAsEagerSteps: losses, parameters and buffers of layers are bit-identical to those
// of eager steps, for every model, with batches of two sizes.
func TestGraphsTrainAsEagerSteps(t *testing.T) {
	for _, model := range models.Names {
		epochs := 4
		if model != "mlp" { // a graph of the smaller batch is replayed from the third on
			epochs = rounds(4, 2)
		}
		t.Run(model, func(t *testing.T) {
			train := func(graph bool) (all []uint32, graphs int) {
				b := digits.Batches{Data: synthetic(rounds(11, 5)), Size: rounds(4, 2), Seed: 1} // 4, 4 and 3; or 2, 2 and 1
				o := options{device: "host", model: model, optimizer: models.Recipes[model].Optimizer, seed: 1, graph: graph}
				tr, err := newTrainer(t.Context(), o, b.Fields(), 12, nil, &profiling{})
				require.NoError(t, err)
				for epoch := range epochs {
					loss, err := tr.epoch(t.Context(), b.Epoch(epoch), b.Count(), func() {})
					require.NoError(t, err)
					seen, err := tr.test(t.Context(), digits.Batches{Data: b.Data, Size: b.Size, InOrder: true}.Epoch(0))
					require.NoError(t, err)
					all = append(all, math.Float32bits(float32(loss)), math.Float32bits(float32(seen.Accuracy())))
				}
				state, err := nn.StateDict(tr.model)
				require.NoError(t, err)
				for _, s := range state {
					if s.Tensor.Dtype() == tensor.Float32 {
						values, err := tensor.ToSlice[float32](t.Context(), s.Tensor, nil)
						require.NoError(t, err)
						for _, v := range values {
							all = append(all, math.Float32bits(v))
						}
					}
				}
				if tr.graphs != nil {
					for _, s := range tr.graphs.all {
						require.Same(t, tr.graphs.pool, s.graph.Pool())
						graphs++
					}
				}
				require.NoError(t, tr.close())
				return all, graphs
			}
			eager, none := train(false)
			replayed, graphs := train(true)
			require.Equal(t, []int{0, 2}, []int{none, graphs})
			require.Equal(t, eager, replayed)
		})
	}
}

// TestGraphFlag: a training with -graph has the losses of one without, and each continues from the
// other's checkpoint.
func TestGraphFlag(t *testing.T) {
	data := dataOf(t, 128, 10)
	kept := filepath.Join(t.TempDir(), "training")
	train := func(args ...string) (r result) {
		file := filepath.Join(t.TempDir(), "r.json")
		var out, errs bytes.Buffer
		require.Zero(t, run(context.Background(), append([]string{"-data", data, "-batch", "40", "-model", anyModel(), "-json", file}, args...), &out, &errs), errs.String())
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &r))
		return r
	}
	eager, replayed := train(), train("-graph", "-resume", kept)
	require.Len(t, eager.Loss, 3)
	require.Equal(t, eager.Loss, replayed.Loss)
	require.Equal(t, eager.TestAccuracy, train("-resume", kept).TestAccuracy)
}
