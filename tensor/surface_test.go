package tensor

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"math/big"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/surface"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// surfaceOf returns the whole package, with valid arguments. Tensors have one of the shapes and
// dtypes.
func surfaceOf(t *testing.T, shapes [][]int, dtypes ...Dtype) *surface.Surface {
	r := newRig(t, 256<<20)
	r.needsHost("it counts the bytes of Go's heap")
	r.scoped()
	rng := rand.New(rand.NewPCG(1, 1))
	tensor := func() *Tensor {
		x, err := r.Full(r.ctx, 1, dtypes[rng.IntN(len(dtypes))], shapes[rng.IntN(len(shapes))]...)
		require.NoError(t, err)
		return x
	}
	off, err := NewOffloader(r.Runtime, OffloadConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, off.Close()) })
	return &surface.Surface{
		T: t,
		Functions: map[string]any{
			"AllowTF32": AllowTF32, "AppendShape": AppendShape, "Backend": Backend, "CacheConfig": CacheConfig, "CopyFrom": CopyFrom[float64], "Detached": Detached,
			"Donate": Donate, "DtypeOf": DtypeOf[float64], "FromSlice": FromSlice[float64], "IgnoreIndex": IgnoreIndex, "IncrementVersion": IncrementVersion,
			"Item": Item[float64], "LabelSmoothing": LabelSmoothing, "Labels": Labels[int64], "LogTarget": LogTarget, "MemoryOf": MemoryOf, "Missing": Missing, "NewLossConfig": NewLossConfig,
			"NewOffloader": NewOffloader, "NewRuntime": NewRuntime, "OnLeak": OnLeak, "OnOperation": OnOperation, "Open": Open, "PoolConfig": PoolConfig, "PosWeight": PosWeight,
			"ReadBytes": ReadBytes, "ReduceBatchMean": ReduceBatchMean, "ReduceMean": ReduceMean, "ReduceNone": ReduceNone, "ReduceSum": ReduceSum, "Scalars": Scalars[float64],
			"Step": Step[SGD], "StreamOptions": StreamOptions, "Temperature": Temperature, "TopK": TopK, "TopP": TopP, "ToBF16": ToBF16, "ToF16": ToF16, "ToSlice": ToSlice[float64], "Weight": Weight, "WithLifetime": WithLifetime,
			"WriteBytes": WriteBytes,
		},
		Receivers: map[string]func() any{
			"Capture": func() any { return new(Capture) },
			"Graph":   func() any { return new(Graph) },
			"Leak":    func() any { return Leak{} },
			"Lifetime": func() any {
				_, l := WithLifetime(r.ctx)
				return l
			},
			"LossConfig": func() any { return new(LossConfig) },
			"Memory":     func() any { return Memory{} },
			"Offloader":  func() any { return off },
			"Recurrence": func() any { return Recurrence{} },
			"Runtime":    func() any { return r.Runtime },
			"Shape":      func() any { return Shape{2, 3} },
			"Tensor":     func() any { return tensor() },
		},
		Without: map[string]string{
			"Runtime.Close": "it would end the runtime", "Offloader.Close": "as Runtime.Close",
			"Tensor.Format": "package fmt calls it",
			"Elementwise":   "Runtime has its methods", "Reductions": "Runtime has its methods",
			"Layers": "Runtime has its methods", "Gradients": "Runtime has its methods",
			"Sampling": "Runtime has its methods",
		},
		Valid: func(typ reflect.Type) any {
			switch typ {
			case reflect.TypeFor[context.Context]():
				return r.ctx
			case reflect.TypeFor[*Runtime]():
				return r.Runtime
			case reflect.TypeFor[*Tensor]():
				return tensor()
			case reflect.TypeFor[*memcache.Cache]():
				return r.Cache()
			case reflect.TypeFor[*transfer.Pool]():
				return r.Pool()
			case reflect.TypeFor[device.Stream]():
				return r.Stream()
			case reflect.TypeFor[Dtype]():
				return Float64
			case reflect.TypeFor[[]float64]():
				return make([]float64, 4)
			case reflect.TypeFor[[]int64]():
				return make([]int64, 2)
			case reflect.TypeFor[io.Reader]():
				return bytes.NewReader(make([]byte, 32))
			case reflect.TypeFor[io.Writer]():
				return io.Discard
			case reflect.TypeFor[fmt.State]():
				return nil
			case reflect.TypeFor[func(context.Context) error]():
				return func(context.Context) error { return nil }
			case reflect.TypeFor[func()]():
				return func() {}
			case reflect.TypeFor[func() error]():
				return func() error { return nil }
			case reflect.TypeFor[func([]float64) error]():
				return func([]float64) error { return nil }
			}
			return nil
		},
		Allowed: map[string]string{
			"Option[]": "options that are nil are left out", "LossOption[]": "options that are nil are left out",
			"CategoricalOption[]": "options that are nil are left out", "Random.Live": "the seed is a number",
			"NewOffloader 2.Out": "a stream of its own", "NewOffloader 2.In": "a stream of its own",
			"Runtime.LinearInputGrad 4": "no ReLU has made the input", "Runtime.ScaledDotProductAttention 5": "no mask",
			"Runtime.ScaledDotProductAttentionGrad 8": "no mask",
			"Runtime.Dropout 2":                       "new memory", "Runtime.BatchNormGrad 5": "no weight",
			"Runtime.ApplyGrad 3": "new memory", "Runtime.ReLUBiasGrad 2": "new memory",
			"Runtime.PowBaseGrad 2": "new memory", "Runtime.PowExponentGrad 2": "new memory",
			"Runtime.MaximumGrad 2": "new memory", "Runtime.MinimumGrad 2": "new memory",
			"context.Context": "an operation that neither allocates nor waits needs none; the others refuse it",
		},
		Done: func(call string, result any) {
			switch v := result.(type) {
			case *Tensor:
				if v.none() { // Missing's
					return
				}
				n := big.NewInt(1)
				for _, d := range v.Shape() {
					n.Mul(n, big.NewInt(int64(d)))
				}
				require.Equal(t, n.String(), fmt.Sprint(v.Elements()), "%s: %v", call, v.Shape())
				require.GreaterOrEqual(t, v.Bytes(), int64(0))
				_ = v.Release() // without a context it belongs to no lifetime
			case *Runtime:
				if v != r.Runtime {
					require.NoError(t, v.Close())
				}
			case *Offloader:
				if v != off {
					require.NoError(t, v.Close())
				}
			case *Graph:
				require.NoError(t, v.Close())
			}
		},
	}
}

// Nothing panics on a nil argument.
func TestNilArguments(t *testing.T) {
	surfaceOf(t, [][]int{{2, 2}}, Float64).Nil()
	r := newRig(t, 64<<20)
	require.ErrorIs(t, new(Graph).Replay(r.ctx), ErrInvalid)
	g, err := r.Capture(r.ctx, func(ctx context.Context) error {
		c := r.Capturing()
		require.ErrorIs(t, c.OnReplay(nil), ErrInvalid)
		c.OnFailure(nil)
		_, err := Scalars[float64](ctx, c, 1, nil)
		require.ErrorIs(t, err, ErrInvalid)
		set := func([]float64) error { return nil }
		for _, n := range []int{-1, math.MinInt, math.MaxInt, math.MaxInt / 8, math.MaxInt/8 + 1} {
			_, err = Scalars(ctx, c, n, set)
			require.Error(t, err, n)
		}
		_, err = Scalars(ctx, c, math.MaxInt/16, set)
		require.NotErrorIs(t, err, ErrShape, "as many as a size in bytes can be")
		_, err = Scalars(ctx, c, math.MaxInt/16+1, set)
		require.ErrorIs(t, err, ErrShape)
		x, err := Scalars(ctx, c, 3, set)
		require.NoError(t, err)
		require.Equal(t, 3, x.Elements())
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, g.Close())
}

// Sizes near the limits of their types are errors, without an overflow or a large allocation.
func TestExtremeArguments(t *testing.T) {
	shapes := [][]int{{2, 2}, {2, 2}, {2}, {}, {1, 2, 2}, {1, 1, 3, 3}, {1, 1, 3, 3}, {0, 2}, {2, 1, 2, 2}}
	surfaceOf(t, shapes, Float64, Float32).Extreme(1, rounds(1000, 100), 300<<20)
}

// The text of each value is short and true, and does not race with changes of the value.
func TestFormat(t *testing.T) {
	s := surfaceOf(t, [][]int{{2}}, Float32)
	rt, ctx := s.Receivers["Runtime"]().(*Runtime), t.Context()
	s.Format(map[string]string{"Capture": "it is for the one call that captures", "Memory": "it is an address to compare", "Leak": "a zero Dtype has no name"}, func() {
		x, err := rt.New(ctx, Float32, 2)
		if err == nil {
			_ = x.Release()
		}
	})
}
