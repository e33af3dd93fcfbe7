package autograd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// TestAResetTapeIsANewOne: random programs on one tape give what they give on a new tape each, to the bit, with the same memory, whatever programs, of which
// some fail, were before.
func TestAResetTapeIsANewOne(t *testing.T) {
	b := open(t, 64<<20)
	random := rand.New(rand.NewPCG(3, 4))
	taped, free := NewTape(b.ctx, b.rt), NoGrad(b.ctx, b.rt)
	for round := range rounds(80, 40) {
		p := randomProgram(random, 3, 2+random.IntN(30))
		data := make([]float64, 12)
		for i := range data {
			data[i] = random.NormFloat64()
		}
		record, fails := random.IntN(4) > 0, random.IntN(8) == 0
		run := func(tape *Tape, end func() error) (all [][]float64, peak, allocations int64) {
			b.cache.ResetPeakStats()
			before := b.cache.Stats().Allocation.All.Allocated
			var leaves []*Variable
			for i := range 3 {
				x := upload(b, data[4*i:4*i+4], 2, 2)
				leaves = append(leaves, tape.Leaf(x))
				require.NoError(t, x.Release())
			}
			assert.Equal(t, record, tape.Training())
			tape.SetTraining(!record)
			sum := p.run(tape, leaves, true)
			if fails {
				tape.MatMul(leaves[0], tape.Reshape(sum, 1))
				require.ErrorIs(t, end(), tensor.ErrShape)
			} else {
				sum.Keep()
				if record {
					_, err := tape.Backward(sum)
					require.NoError(t, err)
					for _, l := range leaves {
						if l.Grad() != nil {
							all = append(all, read[float64](b, l.Grad()))
						}
					}
				}
				all = append(all, read[float64](b, sum.Value()))
				require.NoError(t, end())
			}
			require.Zero(t, b.bytes())
			return all, b.cache.MaxMemoryAllocated(), b.cache.Stats().Allocation.All.Allocated - before
		}
		one := taped
		fresh := NewTape(b.ctx, b.rt)
		if !record {
			one, fresh = free, NoGrad(b.ctx, b.rt)
		}
		want, peak, allocations := run(fresh, fresh.Close)
		got, gotPeak, gotAllocations := run(one, func() error { return one.Reset(b.ctx) })
		require.NoError(t, one.Err())
		require.Equal(t, want, got, "round %d", round)
		require.Equal(t, peak, gotPeak, "round %d", round)
		require.Equal(t, allocations, gotAllocations, "round %d", round)
		if round%7 == 0 { // a closed tape is ready again
			require.NoError(t, one.Close())
			var none context.Context // as a program may have by mistake
			require.ErrorIs(t, one.Reset(none), ErrInvalid)
			require.ErrorIs(t, one.Close(), ErrInvalid)
			require.ErrorIs(t, one.Reset(b.ctx), ErrInvalid)
			require.NoError(t, one.Reset(b.ctx))
		}
	}
	require.NoError(t, errors.Join(taped.Close(), free.Close()))
	require.NoError(t, taped.Close())
}

// TestTrainingOnAResetTape: models with parameters, gradients that live over the step, and random numbers train as on new tapes, and as captured.
func TestTrainingOnAResetTape(t *testing.T) {
	b := open(t, 256<<20)
	for _, m := range []garbageModel{
		{"MLP", garbageMLP(64, 64), []int{8, 784}, 0, 0},
		{"CNN", garbageCNN(8), []int{4, 1, 28, 28}, 0, 0},
		{"GPT", garbageGPT(16), []int{2, 8}, 11, 0},
	} {
		for _, zeroFirst := range []bool{false, true} {
			train := func(how string) (losses []float32, params [][]float32) {
				in := Init(b.ctx, b.rt, Seed(1))
				model := m.model(in)
				named := ParametersOf(model)
				opt := in.AdamW(named, AdamConfig{LR: new(0.01)})
				require.NoError(t, in.Err())
				x, rows := upload(b, numbers(elements(m.input)), m.input...), m.input[0]
				if m.tokens > 0 {
					rows = elements(m.input)
					x = upload(b, make([]int32, rows), m.input...)
				}
				y := upload(b, make([]int32, rows), rows)
				sum := upload(b, []float32{0}, 1)
				kept := NewTape(b.ctx, b.rt)
				step := func(ctx context.Context) error {
					tape, end := kept, func() error { return kept.Reset(ctx) }
					if how == "new" {
						tape = NewTape(ctx, b.rt)
						end = tape.Close
					} else {
						tape.SetContext(ctx)
					}
					if zeroFirst {
						require.NoError(t, opt.ZeroGrad(ctx))
					}
					logits := model.Forward(tape, tape.Input(x))
					if m.tokens > 0 {
						logits = tape.Reshape(logits, rows, m.tokens)
					}
					loss, err := tape.Backward(tape.CrossEntropy(logits, y))
					if err == nil {
						err = errors.Join(opt.Step(ctx), b.rt.AddInPlace(ctx, sum, loss))
					}
					if !zeroFirst {
						err = errors.Join(err, opt.ZeroGrad(ctx))
					}
					return errors.Join(err, end())
				}
				var graph *tensor.Graph
				for i := range rounds(7, 5) {
					if how == "captured" && i == 3 {
						var err error
						graph, err = b.rt.Capture(b.ctx, step)
						require.NoError(t, err)
					}
					if graph != nil {
						require.NoError(t, graph.Replay(b.ctx))
					} else {
						require.NoError(t, step(memcache.WithStep(b.ctx, int64(i+1))))
					}
					losses = append(losses, read[float32](b, sum)...)
				}
				if graph != nil {
					require.NoError(t, graph.Close())
				}
				for _, p := range named {
					params = append(params, read[float32](b, p.Value()))
				}
				require.NoError(t, errors.Join(opt.ZeroGrad(b.ctx), kept.Close(), x.Release(), y.Release(), sum.Release(), in.Close()))
				return losses, params
			}
			losses, params := train("new")
			for _, how := range []string{"reset", "captured"} {
				gotLosses, gotParams := train(how)
				require.Equal(t, losses, gotLosses, "%s, %s, %v", m.name, how, zeroFirst)
				require.Equal(t, params, gotParams, "%s, %s, %v", m.name, how, zeroFirst)
			}
		}
	}
}

func numbers(n int) (xs []float32) {
	for i := range n {
		xs = append(xs, float32(i*31%101)/100)
	}
	return xs
}

// TestResetLabels: what a step allocates has the labels of its own context, also where that is the one of the step before, or that has modules of its own.
func TestResetLabels(t *testing.T) {
	b := open(t, 64<<20)
	x := upload(b, []float32{1, 2}, 2)
	w, err := NewParameter(upload(b, []float32{3, 4}, 2))
	require.NoError(t, err)
	tape := NewTape(b.ctx, b.rt)
	fourth := memcache.WithStep(b.ctx, 4)
	for i, ctx := range []context.Context{
		b.ctx, b.ctx, memcache.WithStep(b.ctx, 3), fourth, fourth, memcache.WithModule(memcache.WithStep(b.ctx, 6), "net"), uncomparable{b.ctx, nil}, uncomparable{fourth, nil}, b.ctx,
	} {
		require.NoError(t, tape.Reset(ctx))
		want := memcache.LabelOf(ctx)
		join := func(module string) memcache.Label {
			l := want
			if l.Module != "" {
				module = l.Module + "." + module
			}
			l.Module, l.Category = module, memcache.CategoryActivation
			return l
		}
		y := tape.Module("a", func() *Variable { return tape.Mul(tape.Param(w), tape.Input(x)) }).Keep()
		z := tape.Module("b", func() *Variable { return tape.Sum(y) }).Keep()
		assert.Equal(t, join("a"), y.Value().Label(), "step %d", i)
		assert.Equal(t, join("b"), z.Value().Label(), "step %d", i)
		if i%2 == 1 { // for the rest of the step, and not for the next one
			tape.SetContext(memcache.WithStep(b.ctx, 100))
		}
		_, err := tape.Backward(z)
		require.NoError(t, err)
		grad := want
		if i%2 == 1 {
			grad = memcache.Label{Step: 100}
		}
		assert.Equal(t, grad.Step, w.Grad().Label().Step, "step %d", i)
		assert.Equal(t, memcache.CategoryGradient, w.Grad().Label().Category)
		require.NoError(t, w.ZeroGrad(b.ctx))
	}
	require.NoError(t, tape.Close())
}

// uncomparable is a context that Go can't compare.
type uncomparable struct {
	context.Context
	_ []int
}

// TestResetInsideOfTheTape is an error, and ends nothing.
func TestResetInsideOfTheTape(t *testing.T) {
	b := open(t, 64<<20)
	x := upload(b, []float64{1, 2}, 2)
	for name, run := range map[string]func(tape *Tape, v *Variable, reset func()) *Variable{
		"Frame": func(tape *Tape, v *Variable, reset func()) *Variable {
			return tape.Frame(func() *Variable { reset(); return tape.Exp(v) })
		},
		"Module": func(tape *Tape, v *Variable, reset func()) *Variable {
			return tape.Module("m", func() *Variable { reset(); return tape.Exp(v) })
		},
		"Checkpoint": func(tape *Tape, v *Variable, reset func()) *Variable {
			return tape.Checkpoint(func() *Variable { reset(); return tape.Exp(v) })
		},
		"forward": func(tape *Tape, v *Variable, reset func()) *Variable {
			return tape.Func("own", []*Variable{v}, func(c *Call) (*tensor.Tensor, error) { reset(); return b.rt.Exp(c.Context(), c.Input(0)) }, nil)
		},
		"backward": func(tape *Tape, v *Variable, reset func()) *Variable {
			return tape.Func("own", []*Variable{v}, func(c *Call) (*tensor.Tensor, error) { return b.rt.Exp(c.Context(), c.Input(0)) },
				func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
					reset()
					return c.Grads(b.rt.Share(c.Context(), g))
				})
		},
	} {
		tape := NewTape(b.ctx, b.rt)
		for range 3 {
			called := false
			v := tape.Leaf(x)
			y := run(tape, v, func() {
				called = true
				require.ErrorIs(t, tape.Reset(b.ctx), ErrInvalid, name)
				require.Equal(t, name == "backward", v.Value().Released(), name)
			})
			if name == "backward" {
				_, err := tape.Backward(tape.Sum(y))
				require.ErrorIs(t, err, ErrInvalid)
			}
			require.True(t, called, name)
			require.ErrorContains(t, tape.Err(), "Reset", name)
			require.ErrorIs(t, tape.Reset(b.ctx), ErrInvalid, name)
			require.NoError(t, tape.Err(), name)
			require.Equal(t, int64(1), b.live(), name)
		}
		require.NoError(t, tape.Close())
	}
	require.NoError(t, x.Release())
}

// TestResetWithoutARuntime is an error, as NewTape is.
func TestResetWithoutARuntime(t *testing.T) {
	tape := NewTape(context.Background(), nil)
	for range 3 {
		require.ErrorIs(t, tape.Reset(context.Background()), ErrInvalid)
		require.Nil(t, tape.Input(nil).Value())
	}
	require.ErrorIs(t, tape.Close(), ErrInvalid)
}

// TestGradientsLiveOverReset, with the tensors that they are, until the parameter gives them up.
func TestGradientsLiveOverReset(t *testing.T) {
	b := open(t, 64<<20)
	w, err := NewParameter(upload(b, []float64{3, 4}, 2))
	require.NoError(t, err)
	tape := NewTape(b.ctx, b.rt)
	seen := make(map[string]bool)
	for i := range 5 {
		for part := range 4 {
			_, err := tape.Backward(tape.Sum(tape.MulScalar(tape.Param(w), 2)))
			require.NoError(t, err)
			grad := w.Grad()
			require.NoError(t, tape.Reset(b.ctx))
			require.Same(t, grad, w.Grad())
			n := float64(2 * (part + 1))
			require.Equal(t, []float64{n, n}, read[float64](b, grad))
			if i > 1 {
				seen[fmt.Sprintf("%p", grad)] = true
			}
		}
		require.NoError(t, w.ZeroGrad(b.ctx))
		if i == 3 { // where it has new lists
			require.NoError(t, errors.Join(tape.Close(), tape.Reset(b.ctx)))
		}
	}
	assert.LessOrEqual(t, len(seen), 2, "places of gradients that were released are used again")
	require.NoError(t, tape.Close())
	assert.Equal(t, int64(1), b.live())
}

// TestResetAfterANilContext: a tape that was made with none is ready once Reset has one.
func TestResetAfterANilContext(t *testing.T) {
	b := open(t, 64<<20)
	x := upload(b, []float64{1, 2}, 2)
	var none context.Context // as a program may have by mistake
	tape := NewTape(none, b.rt)
	require.ErrorIs(t, tape.Reset(b.ctx), ErrInvalid)
	tape.Exp(tape.Input(x)).Keep()
	require.NoError(t, tape.Err())
	require.NoError(t, tape.Close())
	require.NoError(t, x.Release())
}

// TestResetForgetsModules: names that are new in each step are not kept without a bound.
func TestResetForgetsModules(t *testing.T) {
	b := open(t, 64<<20)
	x := upload(b, []float64{1, 2}, 2)
	tape := NewTape(b.ctx, b.rt)
	for i := range 2 * mostPaths {
		name := fmt.Sprint("step", i)
		y := tape.Module(name, func() *Variable { return tape.Exp(tape.Input(x)) })
		require.Equal(t, name, y.Value().Label().Module)
		require.NoError(t, tape.Reset(b.ctx))
	}
	assert.LessOrEqual(t, len(tape.modules), mostPaths)
	require.NoError(t, tape.Close())
	require.NoError(t, x.Release())
}
