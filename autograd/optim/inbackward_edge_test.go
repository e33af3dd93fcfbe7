package optim_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// glimpse is the state between the backward steps of two layers.
type glimpse struct {
	updated   []string
	allocated int64
}

// trainChain trains equal layers of n by n for a step. It returns a glimpse between any two layers,
// from the last layer on, and the peak of the backward pass.
func trainChain(b *tapetest.Bench, layers, n int, minimize func(tape *autograd.Tape, loss *autograd.Variable, opt optim.Optimizer)) (seen []glimpse, peak int64) {
	b.T.Helper()
	in := nn.Init(b.Ctx, b.RT, nn.Seed(5))
	var ps autograd.Parameters
	for i := range layers {
		ps = append(ps, autograd.Named{Name: fmt.Sprint(i), Parameter: in.Linear(n, n, nn.NoBias()).Weight})
	}
	adam := nn.Own(in, optim.NewAdam(ps, optim.AdamConfig{}))
	require.NoError(b.T, errors.Join(in.Err(), adam.Prepare(b.Ctx)))
	first := make([]uint64, len(ps))
	for i, p := range ps {
		first[i] = p.Value().Version()
	}
	look := func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		now := glimpse{allocated: b.Bytes()}
		for i, p := range ps {
			if p.Value().Version() > first[i] {
				now.updated = append(now.updated, p.Name)
			}
			require.Nil(b.T, p.Grad(), "it is the tape's until it is final")
		}
		seen = append(seen, now)
		return c.Grads(g, nil)
	}
	for _, tape := range in.Steps(1) {
		y := tape.Leaf(in.Uniform(-1, 1, 1, n).Value())
		for _, p := range ps {
			y = tape.Func("Look", []*autograd.Variable{tape.Linear(y, tape.Param(p.Parameter), nil)}, func(c *autograd.Call) (*tensor.Tensor, error) {
				return b.RT.Share(c.Context(), c.Input(0))
			}, look)
		}
		loss := tape.Sum(y)
		b.Cache.ResetPeakStats()
		minimize(tape, loss, adam)
		require.NoError(b.T, tape.Err())
		peak = b.Cache.MaxMemoryAllocated()
	}
	require.NoError(b.T, in.Close())
	return seen, peak
}

// TestInBackwardUpdatesInPieces: parameters are updated exactly when a piece of gradients is final,
// and these are freed then. So the peak is lower by all gradients except a piece and the one that
// is being computed.
func TestInBackwardUpdatesInPieces(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	b.NeedsHost("the blocks of the product's workspace are others elsewhere")
	const layers, n, size = 7, 64, 64 * 64 * 4
	names := func(done int) (all []string) {
		for i := layers - done; i < layers; i++ {
			all = append(all, fmt.Sprint(i))
		}
		return all
	}
	last, peak := trainChain(b, layers, n, func(tape *autograd.Tape, loss *autograd.Variable, opt optim.Optimizer) {
		optim.Minimize(tape, loss, opt)
	})
	for i, s := range last {
		require.Empty(t, s.updated)
		require.Equal(t, i, int(s.allocated-last[0].allocated+size/2)/size, "gradients behind %d layers", i)
	}
	for _, piece := range []int{1, size, size + 1, 3 * size, 4*size - 1, 4 * size} {
		each := max(1, (piece+size-1)/size)
		seen, got := trainChain(b, layers, n, func(tape *autograd.Tape, loss *autograd.Variable, opt optim.Optimizer) {
			optim.InBackward(tape, loss, opt, int64(piece))
		})
		require.Len(t, seen, layers)
		for i, s := range seen { // i layers have run
			updated := i / each * each
			require.Equal(t, names(updated), s.updated, "pieces of %d bytes, behind %d layers", piece, i)
			require.Equal(t, last[i].allocated-int64(updated*size), s.allocated, "pieces of %d bytes, behind %d layers", piece, i)
		}
		require.LessOrEqual(t, got, peak-int64((layers-each-1)*size), "pieces of %d bytes", piece)
	}
	seen, got := trainChain(b, layers, n, func(tape *autograd.Tape, loss *autograd.Variable, opt optim.Optimizer) {
		optim.InBackward(tape, loss, opt, 0)
	})
	require.Equal(t, last, seen, "the standard piece is larger than all gradients")
	require.Equal(t, peak, got)
}

// TestInBackwardWithoutMemory: whichever allocation fails, the error has the number of updated
// parameters, these have counted a step, none has a gradient, and nothing leaks.
func TestInBackwardWithoutMemory(t *testing.T) {
	b := tapetest.Open(t, 2<<20)
	x, y := tapetest.Upload(b, make32(32), 4, 8), tapetest.Upload(b, []int32{0, 1, 2, 0})
	for _, piece := range []int64{1, 600, 0} {
		for _, prepared := range []bool{false, true} {
			partly, failures := 0, 0
			for free := 0; ; free++ {
				require.Less(t, free, 100)
				in := nn.Init(b.Ctx, b.RT, nn.Seed(2))
				model := nn.Sequential{in.Linear(8, 8), nn.ReLU{}, in.Linear(8, 8), nn.ReLU{}, in.Linear(8, 3)}
				adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
				require.NoError(t, in.Err())
				if prepared {
					require.NoError(t, adam.Prepare(b.Ctx))
				}
				filler := b.Fill(free)
				before := b.Live()
				first := make([]uint64, 6)
				for i, p := range model.Parameters() {
					first[i] = p.Value().Version()
				}
				tape := autograd.NewTape(b.Ctx, b.RT)
				loss := tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y)
				recorded := tape.Err() == nil
				optim.InBackward(tape, loss, adam, piece)
				err := tape.Close()
				updated := 0
				for i, p := range model.Parameters() {
					require.Nil(t, p.Grad())
					require.EqualValues(t, p.Value().Version()-first[i], optim.StepsOf(adam)[i], p.Name)
					updated += optim.StepsOf(adam)[i]
				}
				if err != nil {
					failures++
					require.ErrorIs(t, err, memcache.ErrOutOfMemory)
					if recorded {
						require.ErrorContains(t, err, fmt.Sprintf("optim: InBackward: %d of 6 parameters updated: ", updated))
					}
					if !prepared {
						require.NoError(t, adam.Close())
					}
					require.LessOrEqual(t, b.Live()-before, int64(1), "with %d free blocks: the runtime's word for faults", free)
				}
				for _, f := range filler {
					require.NoError(t, f.Free())
				}
				require.NoError(t, in.Close())
				if updated > 0 && updated < 6 {
					partly++
				}
				if err == nil {
					require.Equal(t, 6, updated)
					break
				}
			}
			require.Greater(t, failures, 5)
			if !prepared && piece == 1 {
				require.Positive(t, partly, "steps that ended half way")
			}
			if piece == 0 {
				require.Zero(t, partly, "all are updated together")
			}
		}
	}
}

func make32(n int) []float32 {
	data := make([]float32, n)
	for i := range data {
		data[i] = float32(i%7)/7 - 0.3
	}
	return data
}

// TestInBackwardRefuses: invalid calls return a specific error and change nothing.
func TestInBackwardRefuses(t *testing.T) {
	b, other := tapetest.Open(t, 64<<20), tapetest.Open(t, 64<<20)
	p, foreign := b.Parameter(2), other.Parameter(2)
	sgd := func(p *autograd.Parameter) *optim.SGD {
		opt, err := tapetest.WithErr(optim.NewSGD(autograd.Parameters{{Name: "p", Parameter: p}}, optim.SGDConfig{LR: new(0.5)}))
		require.NoError(t, err)
		return opt
	}
	var none *optim.Adam
	mine := sgd(p)
	for want, c := range map[string]struct {
		opt   optim.Optimizer
		piece int64
		is    error
	}{
		"the optimiser is nil":     {nil, 0, autograd.ErrInvalid},
		"optimiser is nil":         {none, 0, autograd.ErrInvalid},
		"is a struct { *optim.SGD": {struct{ *optim.SGD }{mine}, 0, autograd.ErrInvalid},
		"pieces of -1 bytes":       {mine, -1, autograd.ErrInvalid},
		"are of another runtime":   {sgd(foreign), 0, tensor.ErrRuntime},
	} {
		live := b.Live()
		tape := autograd.NewTape(b.Ctx, b.RT)
		loss := tape.Sum(tape.Square(tape.Param(p)))
		optim.InBackward(tape, loss, c.opt, c.piece)
		err := tape.Close()
		require.ErrorIs(t, err, c.is, want)
		require.ErrorContains(t, err, "optim: InBackward: ")
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "updated")
		require.Zero(t, p.Value().Version())
		require.Nil(t, p.Grad())
		require.Equal(t, live, b.Live())
	}

	tape := autograd.NoGrad(b.Ctx, b.RT)
	optim.InBackward(tape, tape.Sum(tape.Param(p)), mine, 1)
	require.ErrorIs(t, tape.Err(), autograd.ErrNoGrad)
	require.NotContains(t, tape.Close().Error(), "updated", "no pass has begun")
	tape = autograd.NewTape(b.Ctx, b.RT)
	optim.InBackward(tape, nil, mine, 1)
	require.ErrorIs(t, tape.Close(), autograd.ErrInvalid)
	require.Zero(t, optim.StepsOf(mine)[0])

	tape = autograd.NewTape(b.Ctx, b.RT)
	loss := tape.Sum(tape.Square(tape.Param(p)))
	optim.InBackward(tape, loss, mine, 1)
	require.NoError(t, tape.Err())
	optim.InBackward(tape, loss, nil, 1)
	require.ErrorIs(t, tape.Err(), autograd.ErrInvalid)
	require.NotContains(t, tape.Close().Error(), "updated", "in this call")
	tape = autograd.NewTape(b.Ctx, b.RT)
	loss = tape.Sum(tape.MulScalar(tape.Param(p), 0))
	optim.InBackward(tape, loss, mine, 1)
	optim.InBackward(tape, loss, mine, 1)
	require.ErrorIs(t, tape.Err(), autograd.ErrSpent)
	require.NotContains(t, tape.Close().Error(), "updated", "in this call")
	require.Equal(t, 2, optim.StepsOf(mine)[0])
}

// TestInBackwardThatFails: an error after the update of a parameter has the number of updates, each
// time, and the other parameters are unchanged.
func TestInBackwardThatFails(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p, q, frozen, unused := b.Parameter(2), b.Parameter(2), b.Parameter(2), b.Parameter(2)
	adam, err := tapetest.WithErr(optim.NewAdam(autograd.Parameters{{Name: "p", Parameter: p}, {Name: "q", Parameter: q}, {Name: "frozen", Parameter: frozen}, {Name: "unused", Parameter: unused}}, optim.AdamConfig{}))
	require.NoError(t, err)
	tape := autograd.NewTape(b.Ctx, b.RT)
	_, err = tape.Backward(tape.Sum(tape.MulScalar(tape.Param(q), 3)))
	require.NoError(t, errors.Join(err, tape.Close()))
	before := q.Grad()
	own := errors.New("the function's own")
	for step := range 2 {
		tape := autograd.NewTape(b.Ctx, b.RT)
		failing := tape.Func("Failing", []*autograd.Variable{tape.Param(q)}, func(c *autograd.Call) (*tensor.Tensor, error) {
			return b.RT.Copy(c.Context(), c.Input(0))
		}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
			require.Equal(t, step+1, optim.StepsOf(adam)[0])
			return nil, own
		})
		loss := tape.Sum(tape.Add(tape.Add(failing, tape.Param(frozen)), tape.Square(tape.Param(p))))
		frozen.SetRequiresGrad(false) // frozen has a gradient on this tape
		optim.InBackward(tape, loss, adam, 1)
		frozen.SetRequiresGrad(true)
		err := tape.Close()
		require.ErrorIs(t, err, own)
		require.EqualError(t, err, "optim: InBackward: 1 of 2 parameters updated: autograd: Failing backward: the function's own")
		require.Nil(t, p.Grad())
		require.Same(t, before, q.Grad())
		require.Equal(t, []float64{3, 3}, tapetest.Read[float64](b, q.Grad()))
		require.Equal(t, []int{step + 1, 0, 0, 0}, optim.StepsOf(adam))
	}
	require.NoError(t, adam.Close())
}

// TestInBackwardMakesOtherTapesStale: other tapes that have read the updated parameters are stale,
// but not its own tape.
func TestInBackwardMakesOtherTapesStale(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p, q := b.Parameter(2), b.Parameter(2)
	opt, err := tapetest.WithErr(optim.NewSGD(autograd.Parameters{{Name: "p", Parameter: p}}, optim.SGDConfig{LR: new(0.5)}))
	require.NoError(t, err)
	record := func() (*autograd.Tape, *autograd.Variable) {
		tape := autograd.NewTape(b.Ctx, b.RT)
		return tape, tape.Sum(tape.Mul(tape.Square(tape.Param(p)), tape.Mul(tape.Param(q), tape.Param(p))))
	}
	other, stale := record()
	tape, loss := record()
	optim.InBackward(tape, loss, opt, 1)
	require.NoError(t, tape.Close())
	require.Nil(t, q.Grad(), "which is not of the optimiser")
	_, err = other.Backward(stale)
	require.ErrorIs(t, err, autograd.ErrStale)
	require.ErrorIs(t, other.Close(), autograd.ErrStale)
}

// TestInBackwardAddsUp: gradients of an earlier tape are added, even of a parameter that this tape
// does not read, and are freed.
func TestInBackwardAddsUp(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p, q, r := b.Parameter(1), b.Parameter(1), b.Parameter(1) // 1 each
	opt, err := tapetest.WithErr(optim.NewSGD(autograd.Parameters{{Name: "p", Parameter: p}, {Name: "q", Parameter: q}, {Name: "r", Parameter: r}}, optim.SGDConfig{LR: new(0.125)}))
	require.NoError(t, err)
	tape := autograd.NewTape(b.Ctx, b.RT)
	_, err = tape.Backward(tape.Sum(tape.Add(tape.MulScalar(tape.Param(p), 3), tape.MulScalar(tape.Param(q), 5))))
	require.NoError(t, errors.Join(err, tape.Close()))
	tape = autograd.NewTape(b.Ctx, b.RT)
	tape.Param(q) // and no more
	optim.InBackward(tape, tape.Sum(tape.Add(tape.Square(tape.Square(tape.Param(p))), tape.MulScalar(tape.Param(r), 2))), opt, 1)
	require.NoError(t, tape.Close())
	for p, slope := range map[*autograd.Parameter]float64{p: 3 + 4, q: 5, r: 2} {
		require.Equal(t, []float64{1 - slope/8}, tapetest.Read[float64](b, p.Value()))
		require.Nil(t, p.Grad())
	}
	require.Equal(t, []int{1, 1, 1}, optim.StepsOf(opt))
}

// TestInBackwardLabels: state that is allocated in the pass belongs to the parameter's module, as
// with Minimize.
func TestInBackwardLabels(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	labels := func(minimize func(tape *autograd.Tape, loss *autograd.Variable, opt optim.Optimizer)) (all []memcache.Label) {
		in := nn.Init(b.Ctx, b.RT, nn.Seed(2))
		model := nn.Sequential{nn.Sequential{in.Linear(8, 8), nn.ReLU{}}, in.Linear(8, 3)}
		adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
		for _, tape := range in.Steps(1) {
			y := model.Forward(tape, tape.Input(in.Uniform(-1, 1, 4, 8).Value()))
			minimize(tape, tape.Sum(y), adam)
			require.NoError(t, tape.Err())
			all = append(all, memcache.LabelOf(tape.Context()))
		}
		for _, ts := range optim.StateOf(adam) {
			for _, x := range ts {
				all = append(all, x.Label())
			}
		}
		require.NoError(t, in.Close())
		return all
	}
	want := labels(func(tape *autograd.Tape, loss *autograd.Variable, opt optim.Optimizer) {
		optim.Minimize(tape, loss, opt)
	})
	got := labels(func(tape *autograd.Tape, loss *autograd.Variable, opt optim.Optimizer) {
		optim.InBackward(tape, loss, opt, 1)
	})
	require.Equal(t, want, got)
	require.Equal(t, memcache.Label{Module: "0.0 (Linear)", Category: memcache.CategoryOptimizerState, Step: 1}, got[1])
}

// TestInBackwardInACaptureThatFails: a capture that fails at the update of a parameter, or after
// it, changes nothing.
func TestInBackwardInACaptureThatFails(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	own := errors.New("the function's own")
	for _, prepared := range []bool{false, true} {
		p, q := b.Parameter(2), b.Parameter(2)
		adam, err := tapetest.WithErr(optim.NewAdam(autograd.Parameters{{Name: "p", Parameter: p}, {Name: "q", Parameter: q}}, optim.AdamConfig{}))
		require.NoError(t, err)
		want := tensor.ErrCapturing
		if prepared {
			require.NoError(t, adam.Prepare(b.Ctx))
			want = own
		}
		capture := func(minimize func(tape *autograd.Tape, loss *autograd.Variable)) {
			_, err := b.RT.Capture(b.Ctx, func(ctx context.Context) error {
				tape := autograd.NewTape(ctx, b.RT)
				failing := tape.Func("Failing", []*autograd.Variable{tape.Param(q)}, func(c *autograd.Call) (*tensor.Tensor, error) {
					return b.RT.Copy(c.Context(), c.Input(0))
				}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) { return nil, own })
				minimize(tape, tape.Sum(tape.Add(failing, tape.Square(tape.Param(p)))))
				return tape.Close()
			})
			require.ErrorIs(t, err, want)
		}
		if prepared { // this allocates the memory that captures keep
			capture(func(tape *autograd.Tape, loss *autograd.Variable) { optim.Minimize(tape, loss, adam) })
		}
		live := b.Live()
		capture(func(tape *autograd.Tape, loss *autograd.Variable) { optim.InBackward(tape, loss, adam, 1) })
		require.Nil(t, p.Grad())
		require.Equal(t, []int{0, 0}, optim.StepsOf(adam))
		require.Equal(t, []float64{1, 2}, tapetest.Read[float64](b, p.Value()))
		require.LessOrEqual(t, b.Live(), live+1, "the word for faults")
		if prepared {
			require.Equal(t, live, b.Live())
		}
		tape := autograd.NewTape(b.Ctx, b.RT)
		optim.InBackward(tape, tape.Sum(tape.Square(tape.Param(p))), adam, 1)
		require.NoError(t, tape.Close())
		require.Equal(t, []int{1, 0}, optim.StepsOf(adam))
		require.NoError(t, adam.Close())
	}
}

// TestInBackwardMakesNoGarbage: a step allocates no more Go objects than a step of Minimize.
func TestInBackwardMakesNoGarbage(t *testing.T) {
	if race.Enabled {
		t.Skip("in race builds nothing is reused")
	}
	b := tapetest.Open(t, 64<<20)
	b.NeedsHost("the emulated device makes objects for each launch")
	model := b.MLP(tensor.Float32, 12, 16, 16, 4)
	adam, err := tapetest.WithErr(optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
	require.NoError(t, err)
	x, y := tapetest.Upload(b, make([]float32, 48), 4, 12), tapetest.Upload(b, make([]int32, 4))
	objects := func(minimize func(tape *autograd.Tape, loss *autograd.Variable)) float64 {
		n := math.Inf(1)
		for range 10 { // the minimum, because the garbage collector empties pools
			n = min(n, testing.AllocsPerRun(10, func() {
				tape := autograd.NewTape(b.Ctx, b.RT)
				minimize(tape, tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y))
				require.NoError(t, tape.Close())
				require.NoError(t, b.RT.Synchronize(b.Ctx))
			}))
		}
		return n
	}
	want := objects(func(tape *autograd.Tape, loss *autograd.Variable) { optim.Minimize(tape, loss, adam) })
	require.LessOrEqual(t, objects(func(tape *autograd.Tape, loss *autograd.Variable) { optim.InBackward(tape, loss, adam, 0) }), want)
	// Six pieces need five more launches of two objects each; see TestGarbageOfAStep.
	require.LessOrEqual(t, objects(func(tape *autograd.Tape, loss *autograd.Variable) { optim.InBackward(tape, loss, adam, 1) }), want+10)
	require.NoError(t, adam.Close())
}
