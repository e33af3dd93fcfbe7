package nn_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// paddedRun is a layer's run of padded rows, steps first, with the gradients of its inputs.
type paddedRun struct {
	b            *tapetest.Bench
	layer        *nn.Recurrent
	steps, batch int
}

// run returns for each row its y up to the end, hn, cn, and the gradients of x up to the end, h0
// and c0, and also the gradients of the weights. weigh returns the loss's factors of a row's
// results.
func (r *paddedRun) run(x, h0, c0 []float64, lengths []int, weigh func(row, result, n int) []float64) (all [][]float64) {
	b, t := r.b, r.b.T
	tape := autograd.NewTape(b.Ctx, b.RT)
	defer func() { require.NoError(t, tape.Close()) }()
	cells := len(r.layer.Cells)
	inputs, hidden := r.layer.Cells[0].WeightIH.Value().Shape()[1], r.layer.Cells[0].WeightHH.Value().Shape()[1]
	leaves := []*autograd.Variable{tape.Leaf(tapetest.Upload(b, x, r.steps, r.batch, inputs)), tape.Leaf(tapetest.Upload(b, h0, cells, r.batch, hidden)), nil}
	if r.layer.Kind == tensor.LSTM {
		leaves[2] = tape.Leaf(tapetest.Upload(b, c0, cells, r.batch, hidden))
	}
	var y, hn, cn *autograd.Variable
	if lengths == nil {
		y, hn, cn = (*nn.LSTM)(r.layer).Run(tape, leaves[0], leaves[1], leaves[2])
	} else {
		l, err := nn.NewLengths(b.Ctx, b.RT, r.steps, lengths...)
		require.NoError(t, err)
		defer func() { require.NoError(t, l.Release()) }()
		y, hn, cn = (*nn.LSTM)(r.layer).RunPadded(tape, leaves[0], l, leaves[1], leaves[2])
	}
	require.NoError(t, tape.Err())
	results := []*autograd.Variable{y.Keep(), hn.Keep()}
	if r.layer.Kind == tensor.LSTM {
		results = append(results, cn.Keep())
	}
	loss := tape.MulScalar(tape.Sum(y), 0)
	for i, v := range results {
		n := v.Value().Elements() / r.batch
		factors := make([]float64, n*r.batch)
		for row := range r.batch {
			width := v.Shape()[2]
			for j, f := range weigh(row, i, n) {
				factors[(j/width*r.batch+row)*width+j%width] = f
			}
		}
		loss = tape.Add(loss, tape.Sum(tape.Mul(v, autograd.Upload(tape, factors, v.Shape()...))))
	}
	_, err := tape.Backward(loss)
	require.NoError(t, err)
	for row := range r.batch {
		end := r.steps
		if lengths != nil {
			end = lengths[row]
		}
		take := func(v *tensor.Tensor, steps int, rest float64) {
			width := v.Shape()[2]
			var of []float64
			for step, data := 0, tapetest.Read[float64](b, v); step < v.Shape()[0]; step++ {
				part := data[(step*r.batch+row)*width:][:width]
				if step < steps {
					of = append(of, part...)
				} else {
					require.Equal(t, slices.Repeat([]float64{rest}, width), part, "after the end")
				}
			}
			all = append(all, of)
		}
		take(y.Value(), end, 0)
		take(leaves[0].Grad(), end, 0)
		for _, v := range append(results[1:], leaves[1:]...) {
			switch {
			case v == nil:
			case v == leaves[1] || v == leaves[2]:
				take(v.Grad(), cells, 0)
			default:
				take(v.Value(), cells, 0)
			}
		}
	}
	for _, p := range r.layer.Parameters() {
		all = append(all, tapetest.Read[float64](b, p.Grad()))
	}
	require.NoError(t, r.layer.Parameters().ZeroGrad(b.Ctx))
	return all
}

// TestPaddedRowsAreAlone compares padded rows of random layers, with NaN as padding, with each row
// alone: all results, and all gradients, those of the weights added up.
func TestPaddedRowsAreAlone(t *testing.T) {
	b := tapetest.Open(t, 128<<20)
	for trial := range tapetest.Rounds(40, 12) {
		random := rand.New(rand.NewPCG(uint64(trial), 51))
		inputs, hidden, steps, batch := 1+random.IntN(3), 1+random.IntN(4), 1+random.IntN(7), 1+random.IntN(4)
		in := nn.Init(b.Ctx, b.RT, nn.Seed(uint64(trial)), nn.Dtype(tensor.Float64))
		options := []nn.LayerOption{nn.Layers(1 + random.IntN(2))}
		for _, o := range []nn.LayerOption{nn.Bidirectional(), nn.NoBias()} {
			if random.IntN(2) == 0 {
				options = append(options, o)
			}
		}
		layer := []func() *nn.Recurrent{
			func() *nn.Recurrent { return (*nn.Recurrent)(in.LSTM(inputs, hidden, options...)) },
			func() *nn.Recurrent { return (*nn.Recurrent)(in.GRU(inputs, hidden, options...)) },
			func() *nn.Recurrent { return (*nn.Recurrent)(in.RNN(inputs, hidden, options...)) },
			func() *nn.Recurrent {
				return (*nn.Recurrent)(in.RNN(inputs, hidden, append(options, nn.ReLUCell())...))
			},
		}[trial%4]()
		require.NoError(t, in.Err())
		numbers := func(n int) []float64 {
			data := make([]float64, n)
			for i := range data {
				data[i] = random.NormFloat64()
			}
			return data
		}
		cells := len(layer.Cells)
		lengths := make([]int, batch)
		for row := range lengths {
			lengths[row] = 1 + random.IntN(steps)
		}
		padded := slices.Repeat([]float64{math.NaN()}, steps*batch*inputs)
		h0, c0 := numbers(cells*batch*hidden), numbers(cells*batch*hidden)
		row := func(of []float64, i, steps, width int, from []float64) {
			for step := range steps {
				copy(of[(step*batch+i)*width:][:width], from[step*width:])
			}
		}
		factor := func(row, result, i int) float64 { return math.Sin(float64(1 + row + 5*result + 3*i)) }
		var want, sums [][]float64
		for i, length := range lengths {
			x, h, c := numbers(length*inputs), numbers(cells*hidden), numbers(cells*hidden)
			row(padded, i, length, inputs, x)
			row(h0, i, cells, hidden, h)
			row(c0, i, cells, hidden, c)
			alone := (&paddedRun{b, layer, length, 1}).run(x, h, c, nil, func(_, result, n int) []float64 {
				f := make([]float64, n)
				for j := range f {
					f[j] = factor(i, result, j)
				}
				return f
			})
			own := len(alone) - len(layer.Parameters())
			want = append(want, alone[:own]...)
			for j, g := range alone[own:] {
				if i == 0 {
					sums = append(sums, g)
					continue
				}
				for e, v := range g {
					sums[j][e] += v
				}
			}
		}
		got := (&paddedRun{b, layer, steps, batch}).run(padded, h0, c0, lengths, func(row, result, n int) []float64 {
			f := make([]float64, n)
			for j := range f {
				f[j] = factor(row, result, j) // after the end, too: y is a constant there
			}
			return f
		})
		want = append(want, sums...)
		require.Len(t, got, len(want))
		for i := range want {
			tapetest.RequireNear(t, want[i], got[i], "trial %d, array %d: %v of %d steps", trial, i, lengths, steps)
		}
		require.NoError(t, in.Close())
	}
}

// TestLengthsOfACapture sets other lengths before each replay.
func TestLengthsOfACapture(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(2))
	gru := in.GRU(2, 3, nn.Bidirectional(), nn.BatchFirst())
	require.NoError(t, in.Err())
	x := tapetest.Upload(b, normals(rand.New(rand.NewPCG(1, 52)), 2*4*2), 2, 4, 2)
	y := tapetest.Upload(b, make([]float32, 2*4*6), 2, 4, 6)
	lengths, err := nn.NewLengths(b.Ctx, b.RT, 4, 1, 4)
	require.NoError(t, err)
	step := func(ctx context.Context) error {
		tape := autograd.NoGrad(ctx, b.RT)
		before, _ := b.RT.Live()
		all, hn := gru.RunPadded(tape, tape.Input(x), lengths, nil)
		hn.Release()
		if tape.Err() == nil {
			require.NoError(t, b.RT.CopyInPlace(ctx, y, all.Value()))
		}
		all.Release()
		live, _ := b.RT.Live()
		assert.LessOrEqual(t, live-before, 2, "what a run leaves: the parts of x and of the lengths")
		return tape.Close()
	}
	require.NoError(t, step(b.Ctx))
	graph, err := b.RT.Capture(b.Ctx, step)
	require.NoError(t, err)
	for _, of := range [][]int{{2, 3}, {4, 1}} {
		require.NoError(t, lengths.Set(b.Ctx, of...))
		require.NoError(t, step(b.Ctx))
		want := tapetest.Read[float32](b, y)
		require.NoError(t, b.RT.Zero(b.Ctx, y))
		require.NoError(t, graph.Replay(b.Ctx))
		require.Equal(t, want, tapetest.Read[float32](b, y))
		for i, v := range want {
			require.Equal(t, i/6%4 >= of[i/24], v == 0, "row %d, step %d of %v", i/24, i/6%4, of)
		}
	}
	require.NoError(t, graph.Close())
	require.NoError(t, lengths.Release())
	require.NoError(t, lengths.Release())
	require.NoError(t, in.Close())
}

func TestLengthsRefuse(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for text, of := range map[string][]int{"row 1 has length 0: want 1 to 3": {1, 0}, "row 0 has length 4: want 1 to 3": {4, 1}, "0 lengths": nil} {
		_, err := nn.NewLengths(b.Ctx, b.RT, 3, of...)
		assert.ErrorIs(t, err, autograd.ErrInvalid)
		assert.ErrorContains(t, err, text)
	}
	for _, steps := range []int{0, -1, math.MaxInt32/2 + 1, math.MaxInt} {
		_, err := nn.NewLengths(b.Ctx, b.RT, steps, 1, 1)
		assert.ErrorIs(t, err, autograd.ErrInvalid, steps)
		assert.ErrorContains(t, err, "steps of 2 rows")
	}
	lengths, err := nn.NewLengths(b.Ctx, b.RT, 3, 1, 2)
	require.NoError(t, err)
	defer func() { require.NoError(t, lengths.Release()) }()
	assert.ErrorContains(t, lengths.Set(b.Ctx, 1), "1 lengths")
	in := nn.Init(b.Ctx, b.RT, nn.Seed(2))
	lstm := in.LSTM(2, 2)
	defer func() { require.NoError(t, in.Close()) }()
	for _, shape := range [][]int{{2, 2, 2}, {3, 1, 2}, {3, 2}} {
		tape := autograd.NoGrad(b.Ctx, b.RT)
		lstm.RunPadded(tape, autograd.Upload(tape, make([]float32, tapetest.Elements(shape)), shape...), lengths, nil, nil)
		assert.ErrorContains(t, tape.Err(), "3 steps of 2 rows", "%v", shape)
		_ = tape.Close()
	}
	for _, l := range []*nn.Lengths{nil, {}} {
		tape := autograd.NoGrad(b.Ctx, b.RT)
		lstm.RunPadded(tape, autograd.Upload(tape, make([]float32, 12), 3, 2, 2), l, nil, nil)
		assert.ErrorIs(t, tape.Err(), autograd.ErrInvalid)
		_ = tape.Close()
	}
}
