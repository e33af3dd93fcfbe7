package parallel_test

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

var shardings = []parallel.Sharding{parallel.ShardState, parallel.ShardGradients}

// TestParallelShardedClipping: the norm is that of all gradients, on all ranks.
func TestParallelShardedClipping(t *testing.T) {
	for name, step := range map[string]func(*trainingRank, int) error{"eager": nil, "replayed": replayed(false)} {
		c := mlpCourse.brief()
		c.clip, c.step = 0.3, step
		c.alone = true
		want := c.trainOn(t, 1)
		c.alone = false
		for _, c.cfg.Shard = range append(shardings, parallel.ShardNothing) {
			for _, n := range []int{1, cisterntest.Ranks(2), cisterntest.Ranks(8)} {
				requireLossesNear(t, want.losses, c.trainOn(t, n).losses, 1e-5, fmt.Sprintf("%s, %d ranks, %d", name, n, c.cfg.Shard))
			}
		}
	}
}

// TestParallelShardedNorms: each norm of sharded and whole gradients equals that of one rank, and
// so do the clipped gradients.
func TestParallelShardedNorms(t *testing.T) {
	rankGroup := tapetest.NewCrew(t, cisterntest.Ranks(3), 64<<20, 0)
	rankGroup.Each(func(r *tapetest.Rank) (err error) {
		in := nn.Init(r.Ctx, r.RT, nn.Seed(5))
		type model struct{ Sharded, Beside *nn.Linear }
		m, twin := model{in.Linear(9, 7), in.Linear(3, 2)}, model{in.Linear(9, 7), in.Linear(3, 2)}
		for i, p := range nn.ParametersOf(m) {
			err = errors.Join(err, r.RT.CopyInPlace(r.Ctx, nn.ParametersOf(twin)[i].Value(), p.Value()))
		}
		if err != nil {
			return err
		}
		dp, err := parallel.New(r.Ctx, r.Comm, m.Sharded, parallel.Config{Shard: parallel.ShardGradients})
		if err != nil {
			return err
		}
		x, z := in.Tensor([]float64{1, 2, 3, -4, 5, -6, 7, 8, 9}, 1, 9), in.Tensor([]float64{1, 5, -3}, 1, 3)
		for _, norm := range []float64{2, 1, 3, math.Inf(1), math.Inf(-1)} {
			// The squares and cubes of the last two overflow or vanish in float32.
			for _, of := range [][2]float64{{1, 0.25}, {1, 1e9}, {1, math.Inf(1)}, {1e25, 1}, {1e-20, 1e-25}} {
				size, most := of[0], of[1]
				var norms [2]float32
				for i, m := range []model{m, twin} {
					for _, tape := range in.Steps(1) {
						loss := tape.Add(tape.Sum(tape.Square(m.Sharded.Forward(tape, tape.Input(x)))), tape.Sum(tape.Square(m.Beside.Forward(tape, tape.Input(z)))))
						if _, err := tape.Backward(tape.MulScalar(loss, size)); err != nil {
							return err
						}
					}
					total, err := optim.ClipGradNormOf(r.Ctx, nn.ParametersOf(m), most, norm)
					if err != nil {
						return err
					}
					if norms[i], err = tensor.Item[float32](r.Ctx, total); err != nil {
						return err
					}
					if err := total.Release(); err != nil {
						return err
					}
				}
				if d := norms[0]/norms[1] - 1; !(d*d < 1e-12) {
					return fmt.Errorf("the %v-norm is %v: want %v", norm, norms[0], norms[1])
				}
				for i, p := range nn.ParametersOf(m) {
					want, err := tensor.ToSlice[float32](r.Ctx, nn.ParametersOf(twin)[i].Grad(), nil)
					if err != nil {
						return err
					}
					g := p.Grad()
					if part, lo, hi, ok := parallel.PartOf(p.Parameter); ok {
						g, want = part, want[lo:hi]
					}
					got, err := tensor.ToSlice[float32](r.Ctx, g, nil)
					if err != nil {
						return err
					}
					if len(got) != len(want) {
						return fmt.Errorf("%q has %d of %d elements", p.Name, len(got), len(want))
					}
					for k := range want {
						if d := math.Abs(float64(got[k] - want[k])); d > 1e-6*math.Abs(float64(want[k])) {
							return fmt.Errorf("%v-norm of at most %v: element %d of %q is %v: want %v", norm, most, k, p.Name, got[k], want[k])
						}
					}
				}
				if err := errors.Join(nn.ParametersOf(m).ZeroGrad(r.Ctx), nn.ParametersOf(twin).ZeroGrad(r.Ctx)); err != nil {
					return err
				}
			}
		}
		return errors.Join(in.Err(), dp.Close(), in.Close())
	})
	rankGroup.Part()
}

// TestParallelShardedMemory: a rank holds exactly the bytes of its parts of the state and the
// gradients.
func TestParallelShardedMemory(t *testing.T) {
	ranks := cisterntest.Ranks(3)
	c := mlpCourse
	c.model = func(in *nn.Initializer) nn.Layer {
		model := nn.Sequential{in.Linear(20, 61)}
		for range 6 {
			model = append(model, nn.ReLU{}, in.Linear(61, 61))
		}
		return append(model, in.Linear(61, 5))
	}
	c.steps = 5
	elements := []int{20 * 61, 61, 61 * 5, 5}
	for range 6 {
		elements = append(elements, 61*61, 61)
	}
	parts := func(n int, of func(elements, part int) int64) (bytes int64) {
		for _, e := range elements {
			part := e / ranks
			if n == ranks-1 {
				part += e % ranks
			}
			bytes += of(e, part)
		}
		return bytes
	}
	plain := c.trainAllOn(t, ranks)
	c.cfg.Shard = parallel.ShardState
	state := c.trainAllOn(t, ranks)
	c.cfg.Shard = parallel.ShardGradients
	gradients := c.trainAllOn(t, ranks)
	for n := range ranks {
		less := parts(n, func(e, part int) int64 { return 2 * 4 * int64(e-part) }) // Adam has two tensors
		require.Equal(t, plain[n].held-less, state[n].held, "rank %d holds", n)
		require.Equal(t, plain[n].peak-less, state[n].peak, "rank %d at the peak", n)
		require.Equal(t, state[n].held, gradients[n].held, "rank %d holds", n)
		t.Logf("rank %d: peak %d bytes, %d with parts of the state, %d with parts of the gradients", n, plain[n].peak, state[n].peak, gradients[n].peak)

		less = parts(n, func(e, part int) int64 { return 4 * int64(e-part) })
		require.Equal(t, plain[n].grads-less, gradients[n].grads, "the gradients of rank %d", n)
		require.Equal(t, plain[n].grads, state[n].grads)
		require.Less(t, gradients[n].peak, state[n].peak)
	}
}

// TestParallelShardedAccumulation: gradients that accumulate on a rank are added to those that were
// reduced before.
func TestParallelShardedAccumulation(t *testing.T) {
	var want record
	for _, sharding := range append([]parallel.Sharding{parallel.ShardNothing}, shardings...) {
		c := mlpCourse
		c.cfg.Shard, c.steps = sharding, 3
		c.step = func(s *trainingRank, k int) error {
			for i := range 4 { // without an exchange and reduced, in turn
				pass := func() error { return s.pass(4*k + i) }
				var err error
				if i%2 == 0 {
					err = s.dp.NoSync(pass)
				} else {
					err = pass()
				}
				if err != nil {
					return err
				}
			}
			return errors.Join(s.opt.Step(s.Ctx), s.opt.ZeroGrad(s.Ctx), s.dp.Verify(s.Ctx))
		}
		got := c.trainOn(t, cisterntest.Ranks(3))
		if sharding == parallel.ShardNothing {
			want = got
			continue
		}
		if sharding == parallel.ShardState {
			require.Equal(t, want.bits, got.bits)
			continue
		}
		require.Len(t, got.bits, len(want.bits))
		for i := range want.bits { // sums in another order: the two means are added
			require.InDelta(t, math.Float32frombits(want.bits[i]), math.Float32frombits(got.bits[i]), 1e-5)
		}
	}
}

// TestParallelShardedUnusedParameters: unused parameters get the other ranks' gradients, or none.
func TestParallelShardedUnusedParameters(t *testing.T) {
	bits := map[parallel.Sharding][]uint32{}
	for _, sharding := range append([]parallel.Sharding{parallel.ShardNothing}, shardings...) {
		which := make([]int, 3)
		plans := [][3]int{{0, 1, 0}, {2, 2, 2}, {1, 0, 0}, {2, 0, 2}}
		c := parallelTraining{input: []int{4}, classes: 5, batch: 6, steps: 4, optimizer: adamOf, cfg: parallel.Config{Shard: sharding, BucketBytes: 1, FirstBucketBytes: 1}}
		c.model = func(in *nn.Initializer) nn.Layer {
			return forked{in.Linear(4, 5), in.Linear(4, 5), in.Linear(4, 5), new(int)}
		}
		c.step = func(s *trainingRank, k int) error {
			which[s.N] = plans[k][s.N]
			*s.model.(forked).which = which[s.N]
			return s.eager(k)
		}
		bits[sharding] = c.trainOn(t, cisterntest.Ranks(3)).bits
	}
	require.Equal(t, bits[parallel.ShardNothing], bits[parallel.ShardState])
	require.Equal(t, bits[parallel.ShardNothing], bits[parallel.ShardGradients])
}

// TestParallelShardedStepFails: a rank without memory for its state makes the others' step fail.
func TestParallelShardedStepFails(t *testing.T) {
	rankGroup := tapetest.NewCrew(t, 3, 4<<20, 10*time.Second)
	for n, err := range rankGroup.All(func(r *tapetest.Rank) (err error) {
		c := mlpCourse
		c.cfg.Shard = parallel.ShardState
		s, err := c.begin(r)
		defer func() { err = errors.Join(err, nn.ParametersOf(s.model).ZeroGrad(r.Ctx), s.end()) }()
		if err == nil {
			err = s.pass(0)
		}
		if err != nil {
			return err
		}
		if r.N == 1 {
			filler := s.Fill(3)
			defer func() {
				for _, b := range filler {
					err = errors.Join(err, b.Free())
				}
			}()
		}
		return errors.Join(s.opt.Step(r.Ctx), r.RT.Synchronize(r.Ctx), s.dp.Err())
	}) {
		if n == 1 {
			require.ErrorIs(t, err, memcache.ErrOutOfMemory)
			continue
		}
		require.ErrorIs(t, err, device.ErrAborted)
		require.ErrorContains(t, err, "rank 1 has aborted")
	}
}

// TestCloseFreesPartsOfGradients: Close frees parts of gradients that no ZeroGrad has freed.
func TestCloseFreesPartsOfGradients(t *testing.T) {
	crew := tapetest.NewCrew(t, 2, 64<<20, 0)
	defer crew.Part()
	crew.Each(func(r *tapetest.Rank) error {
		c := mlpCourse
		c.cfg.Shard = parallel.ShardGradients
		s, err := c.begin(r)
		if err == nil {
			err = s.pass(0)
		}
		var parts []*tensor.Tensor
		for _, p := range nn.ParametersOf(s.model) {
			part, _, _, _ := parallel.PartOf(p.Parameter)
			parts = append(parts, part)
		}
		err = errors.Join(err, s.end())
		for _, part := range parts {
			if part == nil || !part.Released() {
				err = errors.Join(err, errors.New("a part was not made, or not freed"))
			}
		}
		return err
	})
}

// TestClippingThatFailsKeepsNoMemory: if the communicator is aborted, ClipNorm frees the norm and
// its operands.
func TestClippingThatFailsKeepsNoMemory(t *testing.T) {
	var passed sync.WaitGroup
	passed.Add(2)
	tapetest.NewCrew(t, 2, 64<<20, 0).Each(func(r *tapetest.Rank) error {
		c := mlpCourse
		c.cfg.Shard = parallel.ShardGradients
		s, err := c.begin(r)
		if err == nil {
			err = s.pass(0)
		}
		passed.Done()
		passed.Wait()
		err = errors.Join(err, r.RT.Synchronize(r.Ctx), r.Comm.Abort())
		before := r.Live()
		failed := optim.ClipGradNorm(r.Ctx, nn.ParametersOf(s.model), 1)
		if !errors.Is(failed, device.ErrAborted) || r.Live() != before {
			err = errors.Join(err, fmt.Errorf("%d blocks, after clipping %d: %w", before, r.Live(), failed))
		}
		return errors.Join(err, s.end())
	})
}
