package autograd_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// addNorms computes a sum and its norm, in one operation or in two.
type addNorms func(t *autograd.Tape, x, y, w, b *autograd.Variable) (sum, norm *autograd.Variable)

// borrowed keeps the operations until end from being the last reader of v.
func borrowed(v *autograd.Variable) (end func()) {
	last := autograd.LastOf(v)
	mark := *last
	*last = 0
	return func() { *last = mark }
}

// TestAddNormsAreSumsAndNorms: values and gradients are bit-identical to those of a sum and a norm,
// for operands of one shape and of two, read once or more, on all kinds of tapes.
func TestAddNormsAreSumsAndNorms(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	random := rand.New(rand.NewPCG(2, 5))
	numbers := func(shape ...int) *tensor.Tensor {
		v := make([]float32, tapetest.Elements(shape))
		for i := range v {
			v[i] = float32(random.NormFloat64())
		}
		return tapetest.Upload(b, v, shape...)
	}
	const cols = 6
	layer := [2]addNorms{
		func(t *autograd.Tape, x, y, w, b *autograd.Variable) (*autograd.Variable, *autograd.Variable) {
			return t.AddLayerNorm(x, y, w, b, 1e-3, cols)
		},
		func(t *autograd.Tape, x, y, w, b *autograd.Variable) (*autograd.Variable, *autograd.Variable) {
			s := t.Add(x, y)
			defer borrowed(s)()
			return s, t.LayerNorm(s, w, b, 1e-3, cols)
		},
	}
	root := [2]addNorms{
		func(t *autograd.Tape, x, y, w, _ *autograd.Variable) (*autograd.Variable, *autograd.Variable) {
			return t.AddRMSNorm(x, y, w, 1e-3, cols)
		},
		func(t *autograd.Tape, x, y, w, _ *autograd.Variable) (*autograd.Variable, *autograd.Variable) {
			s := t.Add(x, y)
			defer borrowed(s)()
			return s, t.RMSNorm(s, w, 1e-3, cols)
		},
	}
	offloader, err := tensor.NewOffloader(b.RT, tensor.OffloadConfig{})
	require.NoError(t, err)
	defer func() { require.NoError(t, offloader.Close()) }()
	for name, ways := range map[string][2]addNorms{"layer": layer, "root mean square": root} {
		for _, shapes := range [][2][]int{{{3, 5, cols}, {3, 5, cols}}, {{3, 5, cols}, {5, cols}}, {{1, cols}, {4, cols}}, {{0, cols}, {0, cols}}} {
			x, y, w, bias := numbers(shapes[0]...), numbers(shapes[1]...), numbers(cols), numbers(cols)
			for _, how := range []string{"plainly", "once", "without weights", "in bfloat16", "in a checkpoint", "in a checkpoint that reads one", "with an offloader", "the same operand", "the sum alone", "without gradients"} {
				var want string
				for i, f := range ways {
					var tape *autograd.Tape
					switch how {
					case "without gradients":
						tape = autograd.NoGrad(b.Ctx, b.RT)
					default:
						tape = autograd.NewTape(b.Ctx, b.RT)
					}
					if how == "in bfloat16" {
						tape.SetComputeDtype(tensor.BFloat16)
					}
					leaves := []*autograd.Variable{tape.Leaf(x), tape.Leaf(y), tape.Leaf(w), tape.Leaf(bias)}
					body := func() *autograd.Variable {
						u, v := tape.Tanh(leaves[0]), tape.Tanh(leaves[1])
						switch how {
						case "the same operand":
							v = u
						case "once":
							u, v = u.Once(), v.Once()
						}
						scale, shift := leaves[2], leaves[3]
						if how == "without weights" {
							scale, shift = nil, nil
						}
						s, n := f(tape, u, v, scale, shift)
						switch how {
						case "the sum alone":
							return tape.Tanh(s)
						case "in a checkpoint that reads one":
							return n
						}
						return tape.Mul(s, tape.Tanh(n))
					}
					var out *autograd.Variable
					switch how {
					case "in a checkpoint", "in a checkpoint that reads one":
						out = remat.Checkpoint(tape, body).Keep()
					case "with an offloader":
						out = offload.Activations(tape, offloader, body).Keep()
					default:
						out = body().Keep()
					}
					require.NoError(t, tape.Err(), how)
					got := fmt.Sprint(tapetest.Wide(b, out.Value()))
					if how != "without gradients" {
						_, err := tape.Backward(tape.Sum(tape.Square(out)))
						require.NoError(t, err, how)
						for _, l := range leaves {
							if l.Grad() != nil {
								got += fmt.Sprint(tapetest.Wide(b, l.Grad()))
							}
						}
					}
					require.NoError(t, tape.Close())
					if i == 0 {
						want = got
					}
					require.Equal(t, want, got, "%s norm of %v, %s", name, shapes, how)
				}
			}
		}
	}
}

// TestAddNormIsOneLaunch on a GPU, with the sum in the memory of an operand after its last use.
func TestAddNormIsOneLaunch(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	launches := map[string]int{}
	rt := b.Counting(launches)
	x, err := tensor.FromSlice(b.Ctx, rt, make([]float32, 1<<18), 512, 512)
	require.NoError(t, err)
	_, onHost := b.Dev.(device.HostVisible)
	tape := autograd.NewTape(b.Ctx, rt)
	u, v := tape.Add(tape.Leaf(x), tape.Leaf(x)), tape.Add(tape.Leaf(x), tape.Leaf(x))
	clear(launches)
	b.Cache.ResetPeakStats()
	before := b.Cache.MemoryAllocated()
	sum, norm := tape.AddLayerNorm(u.Once(), v.Once(), nil, nil, 0, 512)
	require.NoError(t, tape.Err())
	if onHost {
		require.Equal(t, map[string]int{"add": 1, "normalize": 1}, launches)
	} else {
		require.Equal(t, map[string]int{"add normalize": 1}, launches)
	}
	require.Less(t, b.Cache.MaxMemoryAllocated()-before, int64(1<<20+1<<19), "the norm and its statistics alone")
	_, err = tape.Backward(tape.Sum(tape.Mul(sum, norm)))
	require.NoError(t, err)
	require.NoError(t, tape.Close())
	require.NoError(t, x.Release())
}

// TestAddNormRefuses: an AddNorm refuses what Add and the norm refuse, also of nil layers, and
// leaks nothing.
func TestAddNormRefuses(t *testing.T) {
	b := tapetest.Open(t, 4<<20)
	x := tapetest.Upload(b, make([]float32, 6), 2, 3)
	before := b.Cache.MemoryAllocated()
	for name, f := range map[string]func(t *autograd.Tape, x *autograd.Variable) (*autograd.Variable, *autograd.Variable){
		"nil": func(t *autograd.Tape, x *autograd.Variable) (*autograd.Variable, *autograd.Variable) {
			return t.AddLayerNorm(x, nil, nil, nil, 0, 3)
		},
		"two shapes": func(t *autograd.Tape, x *autograd.Variable) (*autograd.Variable, *autograd.Variable) {
			return t.AddLayerNorm(x, t.Reshape(x, 3, 2), nil, nil, 0, 3)
		},
		"another shape": func(t *autograd.Tape, x *autograd.Variable) (*autograd.Variable, *autograd.Variable) {
			return t.AddRMSNorm(x, x, nil, 0, 2)
		},
		"an eps below 0": func(t *autograd.Tape, x *autograd.Variable) (*autograd.Variable, *autograd.Variable) {
			return t.AddLayerNorm(x, x, nil, nil, -1, 3)
		},
		"nil layer": func(t *autograd.Tape, x *autograd.Variable) (*autograd.Variable, *autograd.Variable) {
			return (*nn.LayerNorm)(nil).ForwardAdd(t, x, x)
		},
		"nil root layer": func(t *autograd.Tape, x *autograd.Variable) (*autograd.Variable, *autograd.Variable) {
			return (*nn.RMSNorm)(nil).ForwardAdd(t, x, x)
		},
		"another's value": func(t *autograd.Tape, x *autograd.Variable) (*autograd.Variable, *autograd.Variable) {
			return t.AddLayerNorm(x, autograd.NewTape(b.Ctx, b.RT).Leaf(x.Value()), nil, nil, 0, 3)
		},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		sum, norm := f(tape, tape.Leaf(x))
		require.NotNil(t, sum, name)
		require.NotNil(t, norm, name)
		require.Error(t, tape.Err(), name)
		require.Error(t, tape.Close(), name)
		require.Equal(t, before, b.Cache.MemoryAllocated(), name)
	}
	large := tapetest.Upload(b, make([]float32, 64<<10), 256, 256)
	tape := autograd.NewTape(b.Ctx, b.RT)
	u := tape.Leaf(large)
	for range 16 {
		u, _ = tape.AddLayerNorm(u, u, nil, nil, 0, 256)
	}
	require.ErrorIs(t, tape.Close(), memcache.ErrOutOfMemory)
	require.NoError(t, large.Release())
	require.Equal(t, before, b.Cache.MemoryAllocated())
}

// TestAddNormOfItsOwnWeight: an operand that is also the weight is read twice. If only one reading
// is allowed, that is an error; otherwise the result is that of two operations.
func TestAddNormOfItsOwnWeight(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x, y := tapetest.Upload(b, []float32{2, 3, 4, 6}, 4), tapetest.Upload(b, []float32{1.5, -1, 2, 1}, 4)
	for i, f := range []func(t *autograd.Tape, x, y *autograd.Variable) (*autograd.Variable, *autograd.Variable){
		func(t *autograd.Tape, x, y *autograd.Variable) (*autograd.Variable, *autograd.Variable) {
			return t.AddLayerNorm(x, y, x, nil, 0, 4)
		},
		func(t *autograd.Tape, x, y *autograd.Variable) (*autograd.Variable, *autograd.Variable) {
			return t.AddLayerNorm(y, x, nil, x, 0, 4)
		},
		func(t *autograd.Tape, x, y *autograd.Variable) (*autograd.Variable, *autograd.Variable) {
			return t.AddRMSNorm(y, x, x, 0, 4)
		},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		f(tape, tape.AddScalar(tape.Leaf(x), 0).Once(), tape.Leaf(y))
		require.ErrorIs(t, tape.Close(), tensor.ErrReleased, i)
		tape = autograd.NoGrad(b.Ctx, b.RT)
		f(tape, tape.AddScalar(tape.Input(x), 0), tape.Input(y))
		require.ErrorIs(t, tape.Close(), tensor.ErrReleased, i)
		tape = autograd.NewTape(b.Ctx, b.RT)
		u := tape.Leaf(x)
		sum, norm := f(tape, tape.AddScalar(u, 0), tape.Leaf(y))
		_, err := tape.Backward(tape.Sum(tape.Mul(sum, norm)))
		require.NoError(t, err)
		require.NotZero(t, tapetest.Read[float32](b, u.Grad()))
		require.NoError(t, tape.Close())
	}
}
