package forecast_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/forecast"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// planned returns a training of a plan's blocks, of which the layers named in checkpointed are
// recomputed.
func planned(dtype tensor.Dtype, blocks int, ways []forecast.Way, checkpointed ...string) forecast.Program {
	return func(ctx context.Context, rt *tensor.Runtime) (*forecast.Training, error) {
		in, plan := nn.Init(ctx, rt, nn.ComputeDtype(dtype)), new(remat.Plan)
		var model nn.Sequential
		for i := range blocks {
			model = append(model, plan.Layer(fmt.Sprint(i), nn.Sequential{in.Linear(32, 600+100*i), nn.GELU{}, in.Linear(600+100*i, 32)}))
		}
		in.Fail(nn.NameModules(model))
		adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
		x, y := in.Zeros(5000, 32), in.Labels(make([]int, 5000), 32)
		if err := errors.Join(in.Err(), plan.Set(checkpointed...)); err != nil {
			return nil, errors.Join(err, in.Close())
		}
		return &forecast.Training{Model: model, Close: in.Close, Plan: plan, Ways: ways, Step: func(ctx context.Context) error {
			tape := autograd.NewTape(ctx, rt)
			tape.SetComputeDtype(dtype)
			optim.Minimize(tape, tape.CrossEntropy(model.Forward(tape, tape.Input(x.Value())), y), adam)
			return tape.Close()
		}}, nil
	}
}

// TestAdvice: the memory of each advice is that of a program that follows it, and with less memory
// the plan recomputes more.
func TestAdvice(t *testing.T) {
	ctx := context.Background()
	ways := []forecast.Way{{Name: "a smaller model", Program: planned(tensor.Float32, 2, nil)}, {Name: "bfloat16", Program: planned(tensor.BFloat16, 6, nil)}}
	plain := planned(tensor.Float32, 6, ways)
	whole, err := forecast.Step(ctx, "dry:host", plain)
	require.NoError(t, err)
	require.Empty(t, whole.Advice)
	before := 0
	for _, share := range []float64{0.95, 0.8, 0.6, 0.05} {
		capacity := int64(share * float64(whole.ReservedPeak))
		name := fmt.Sprintf("dry:host?capacity=%d", capacity)
		f, err := forecast.Step(ctx, name, plain)
		require.NoError(t, err)
		require.False(t, f.Fits)
		require.Equal(t, whole.ReservedPeak, f.ReservedPeak)
		var plan forecast.Advice
		for _, a := range f.Advice {
			if len(a.Checkpoint) > 0 {
				plan = a
			}
		}
		require.Greater(t, len(plan.Checkpoint), before, "of %d bytes: %v", capacity, f.Advice)
		before = len(plan.Checkpoint)
		require.Equal(t, "checkpoint "+strings.Join(plan.Checkpoint, ", "), plan.Name)
		followed, err := forecast.Step(ctx, name, planned(tensor.Float32, 6, nil, plan.Checkpoint...))
		require.NoError(t, err)
		require.Equal(t, followed.Fits, plan.Fits)
		require.Equal(t, followed.ReservedPeak, plan.ReservedPeak)
		require.Equal(t, followed.AllocatedPeak, plan.AllocatedPeak)
		require.Equal(t, share > 0.1, plan.Fits)
		require.Equal(t, plan.Fits, fitsReally(t, capacity, planned(tensor.Float32, 6, nil, plan.Checkpoint...)))
		for i, w := range ways {
			followed, err := forecast.Step(ctx, name, w.Program)
			require.NoError(t, err)
			a := f.Advice[len(f.Advice)-len(ways)+i]
			require.Equal(t, forecast.Advice{Name: w.Name, Fits: followed.Fits, AllocatedPeak: followed.AllocatedPeak, ReservedPeak: followed.ReservedPeak}, a)
		}
		var table strings.Builder
		require.NoError(t, f.Table(&table))
		require.Contains(t, table.String(), "with "+plan.Name+": ")
	}
}

// pieces is a training that frees pieces of two segments, and then requests their sum.
func pieces(ctx context.Context, rt *tensor.Runtime) (*forecast.Training, error) {
	return &forecast.Training{Step: func(ctx context.Context) error {
		var held []*tensor.Tensor
		var errs []error
		for _, mebibytes := range []int{9, 9, 9, 9, 18} {
			x, err := rt.New(ctx, tensor.Uint8, mebibytes<<20)
			if err == nil {
				held = append(held, x)
			}
			if errs = append(errs, err); len(held) == 4 {
				errs = append(errs, held[1].Release(), held[2].Release())
			}
		}
		for i, x := range held {
			if i != 1 && i != 2 {
				errs = append(errs, x.Release())
			}
		}
		return errors.Join(errs...)
	}}, nil
}

// TestAdviceOfTheAllocator: an allocator option is advised if the training fits with it.
func TestAdviceOfTheAllocator(t *testing.T) {
	ctx, name := context.Background(), "dry:cuda?capacity=50MiB"
	f, err := forecast.Step(ctx, name, pieces)
	require.NoError(t, err)
	require.False(t, f.Fits)
	require.EqualValues(t, 58<<20, f.ReservedPeak)
	followed, err := forecast.Step(ctx, name, pieces, tensor.CacheConfig(memcache.Config{ExpandableSegments: true}))
	require.NoError(t, err)
	require.True(t, followed.Fits)
	require.Equal(t, []forecast.Advice{{Name: "expandable_segments:True", Fits: true, AllocatedPeak: 36 << 20, ReservedPeak: followed.ReservedPeak}}, f.Advice)
	f, err = forecast.Step(ctx, "dry:cuda?capacity=30MiB", pieces)
	require.NoError(t, err)
	require.Empty(t, f.Advice, "no option makes 36 MiB fit into 30")
}

func TestAdviceFails(t *testing.T) {
	mine := errors.New("mine")
	ways := []forecast.Way{{Name: "this one", Program: func(context.Context, *tensor.Runtime) (*forecast.Training, error) { return nil, mine }}}
	_, err := forecast.Step(context.Background(), "dry:host?capacity=2MiB", planned(tensor.Float32, 3, ways))
	require.ErrorIs(t, err, mine)
	require.ErrorContains(t, err, "advice: this one: forecast: mine")
	require.NotErrorIs(t, err, memcache.ErrOutOfMemory)
	_, err = forecast.Step(context.Background(), "dry:host?capacity=2MiB", planned(tensor.Float32, 3, []forecast.Way{{Name: "none"}}))
	require.ErrorContains(t, err, "advice: none: forecast: the program is nil")
}
