package parallel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// TestParallelFailures: if one rank fails in a step in any way, the others' step soon returns an
// error that names the failure.
func TestParallelFailures(t *testing.T) {
	const timeout = 300 * time.Millisecond
	own := errors.New("its own")
	for name, c := range map[string]struct {
		does  func(s *trainingRank, over chan struct{}) error // run by rank 1 instead of step 2
		own   error                                           // rank 1's error; nil: none
		class error                                           // the others' error
		words []string
	}{
		"an error": {func(*trainingRank, chan struct{}) error { return own }, own, device.ErrAborted, []string{"rank 1 has closed"}},
		"a panic":  {func(*trainingRank, chan struct{}) error { panic(own) }, own, device.ErrAborted, []string{"rank 1 has closed"}},
		"an error of Backward": {func(s *trainingRank, over chan struct{}) error {
			err := failingStep(s, own)
			<-over // Backward aborts the communicator, not Close
			return err
		}, own, device.ErrAborted, []string{"rank 1 has aborted"}},
		"an error before Backward": {func(s *trainingRank, over chan struct{}) error {
			tape := autograd.NewTape(s.Ctx, s.RT)
			tape.Param(nn.ParametersOf(s.model)[0].Parameter)
			_, err := tape.Backward(tape.Leaf(nil))
			<-over
			return errors.Join(err, tape.Close())
		}, autograd.ErrInvalid, device.ErrAborted, []string{"rank 1 has aborted"}},
		"a hang": {func(_ *trainingRank, over chan struct{}) error { <-over; return nil }, nil, device.ErrTimeout, []string{"rank 1 is missing", "300ms"}},
		"no memory": {func(s *trainingRank, over chan struct{}) error {
			filler := s.Fill(12)
			err := s.eager(2)
			for _, b := range filler {
				err = errors.Join(err, b.Free())
			}
			<-over
			return err
		}, memcache.ErrOutOfMemory, device.ErrAborted, []string{"rank 1 has aborted"}},
		"another shape": {func(s *trainingRank, _ chan struct{}) error {
			x, err := s.RT.Zeros(s.Ctx, tensor.Float32, 7)
			if err == nil {
				err = errors.Join(s.dp.AllReduce(s.Ctx, x, device.ReduceSum), s.RT.Synchronize(s.Ctx), s.dp.Err(), x.Release())
			}
			return err
		}, device.ErrMismatch, device.ErrMismatch, []string{"rank 1", "AllReduce", "of 7 float32"}},
	} {
		t.Run(name, func(t *testing.T) {
			ranks := cisterntest.Ranks(3)
			if ranks < 2 {
				t.Skip("needs two ranks")
			}
			rankGroup := tapetest.NewCrew(t, ranks, 4<<20, timeout)
			over := make(chan struct{})
			left := make(chan struct{}, ranks)
			go func() {
				for range ranks - 1 {
					<-left
				}
				close(over)
			}()
			errs := rankGroup.All(func(r *tapetest.Rank) (err error) {
				s, err := mlpCourse.begin(r)
				defer func() {
					if p := recover(); p != nil {
						err = p.(error)
					}
					if r.N != 1 {
						left <- struct{}{}
					}
					_ = r.Comm.Close() // it returns the error that ended it
					err = errors.Join(err, nn.ParametersOf(s.model).ZeroGrad(r.Ctx), s.end())
				}()
				for k := 0; k < 4 && err == nil; k++ {
					began := time.Now()
					if k == 2 && r.N == 1 {
						return c.does(s, over)
					}
					if err = s.eager(k); err != nil && time.Since(began) > timeout+5*time.Second {
						err = fmt.Errorf("after %v: %w", time.Since(began), err)
					}
				}
				return err
			})
			if c.own == nil {
				require.NoError(t, errs[1])
			} else {
				require.ErrorIs(t, errs[1], c.own)
			}
			for n := 0; n < ranks; n += 2 {
				require.ErrorIs(t, errs[n], c.class, "rank %d", n)
				var e *device.CollectiveError
				require.ErrorAs(t, errs[n], &e)
				require.Contains(t, e.Ranks, 1)
				require.NotContains(t, errs[n].Error(), "after ")
				for _, w := range append(c.words, fmt.Sprintf("rank %d of %d", n, ranks)) {
					require.Contains(t, errs[n].Error(), w)
				}
			}
		})
	}
}

// failingStep is a step whose backward pass fails at its end, while gradients are in flight.
func failingStep(s *trainingRank, err error) error {
	xs, ys, shape := s.data(2)
	tape := autograd.NewTape(s.Ctx, s.RT)
	x := autograd.Upload(tape, xs, shape...)
	y, e := tensor.FromSlice(s.Ctx, s.RT, ys)
	m := s.model.(nn.Sequential)
	h := tape.Func("failing", []*autograd.Variable{m[:1].Forward(tape, x)}, func(c *autograd.Call) (*tensor.Tensor, error) { return s.RT.Copy(c.Context(), c.Input(0)) },
		func(*autograd.Call, *tensor.Tensor) ([]*tensor.Tensor, error) { return nil, err })
	_, failed := tape.Backward(tape.CrossEntropy(m[1:].Forward(tape, h), y))
	_ = tape.Close() // the same
	return errors.Join(failed, e, y.Release())
}

// TestParallelMemoryOfAFailedPass: gradients that are in flight when a pass fails can be freed at
// once, and their memory is not reused before they have arrived.
func TestParallelMemoryOfAFailedPass(t *testing.T) {
	rankGroup := tapetest.NewCrew(t, 1, 64<<20, 0)
	rankGroup.Each(func(r *tapetest.Rank) (err error) {
		c := mlpCourse
		c.cfg = parallel.Config{BucketBytes: 1, FirstBucketBytes: 1}
		s, err := c.begin(r)
		defer func() { err = errors.Join(err, s.end()) }()
		if err != nil {
			return err
		}
		if err := errors.Join(s.eager(0), s.RT.Synchronize(r.Ctx), streamOf(s.dp).Synchronize(r.Ctx)); err != nil {
			return err
		}
		release := cisterntest.Hold(t, streamOf(s.dp))
		defer release()
		own := errors.New("its own")
		if err := failingStep(s, own); !errors.Is(err, own) {
			return fmt.Errorf("the step has returned %w", err)
		}
		last := nn.ParametersOf(s.model)[4]
		if last.Grad() == nil {
			return errors.New("the last layer has no gradient")
		}
		at, bytes := last.Grad().Block().Ptr(), last.Grad().Block().Size()
		if err := nn.ParametersOf(s.model).ZeroGrad(r.Ctx); err != nil {
			return err
		}
		var blocks []memcache.Block
		for range 64 {
			b, err := r.Cache.Alloc(r.Ctx, bytes, r.RT.Stream())
			if err != nil {
				return err
			}
			blocks = append(blocks, b)
			if b.Ptr() == at {
				return errors.New("memory that is being reduced was handed out")
			}
		}
		release()
		for _, b := range blocks {
			err = errors.Join(err, b.Free())
		}
		return errors.Join(err, streamOf(s.dp).Synchronize(r.Ctx))
	})
}

// endless is a communicator whose last groups fail after they were queued.
type endless struct {
	device.Communicator
	fails bool
}

func (e *endless) GroupEnd() error {
	err := e.Communicator.GroupEnd()
	if err == nil && e.fails {
		err = cisterntest.ErrRefused
	}
	return err
}

// TestParallelBuffersOfAFailedPass: buffers that are in flight when a pass fails can be freed at
// once, and their memory is not reused before they have arrived.
func TestParallelBuffersOfAFailedPass(t *testing.T) {
	tapetest.NewCrew(t, 1, 64<<20, 0).Each(func(r *tapetest.Rank) (err error) {
		in := nn.Init(r.Ctx, r.RT, nn.Seed(1))
		model := nn.Sequential{in.Linear(20, 600), in.BatchNorm(600), in.Linear(600, 5)}
		dp, err := parallel.New(r.Ctx, r.Comm, model, parallel.Config{})
		if err != nil {
			return err
		}
		s := &trainingRank{Rank: r, training: &mlpCourse, in: in, model: model, dp: dp}
		if err := errors.Join(s.pass(0), s.RT.Synchronize(r.Ctx), streamOf(dp).Synchronize(r.Ctx)); err != nil {
			return err
		}
		release := cisterntest.Hold(t, streamOf(dp))
		defer release()
		_, comm := parallel.ExchangeOf(dp)
		*comm = &endless{*comm, true}
		if err := s.pass(1); !errors.Is(err, cisterntest.ErrRefused) {
			return fmt.Errorf("the pass has returned %w", err)
		}
		mean := model[1].(*nn.BatchNorm).Mean
		at, bytes := mean.Block().Ptr(), mean.Block().Size()
		err = errors.Join(mean.Release(), model.Parameters().ZeroGrad(r.Ctx))
		var blocks []memcache.Block
		for range 64 {
			b, failed := r.Cache.Alloc(r.Ctx, bytes, r.RT.Stream())
			if failed != nil {
				return failed
			}
			if blocks = append(blocks, b); b.Ptr() == at {
				err = errors.Join(err, errors.New("memory that is being written was handed out"))
			}
		}
		release()
		for _, b := range blocks {
			err = errors.Join(err, b.Free())
		}
		return errors.Join(err, streamOf(dp).Synchronize(r.Ctx), dp.Close(), in.Close())
	})
}

// TestParallelRefuses: invalid models and options return a specific error on every rank that can
// detect them.
func TestParallelRefuses(t *testing.T) {
	rankGroup := tapetest.NewCrew(t, 3, 64<<20, 0)
	like := func(in *nn.Initializer) any { return in.Linear(4, 3) }
	for name, c := range map[string]struct {
		other func(in *nn.Initializer) any // of rank 2
		cfg   parallel.Config
		words []string
	}{
		"a shape":      {func(in *nn.Initializer) any { return in.Linear(4, 2) }, parallel.Config{}, []string{"on rank 2", `"weight"`, "dtype or shape"}},
		"a name":       {func(in *nn.Initializer) any { return nn.Sequential{in.Linear(4, 3)} }, parallel.Config{}, []string{"on rank 2", "weight"}},
		"a number":     {func(in *nn.Initializer) any { return in.Linear(4, 3, nn.NoBias()) }, parallel.Config{}, []string{"model of rank 2 has 1 ", "rank 0's has 2"}},
		"a frozen one": {func(in *nn.Initializer) any { l := in.Linear(4, 3); l.Bias.SetRequiresGrad(false); return l }, parallel.Config{}, []string{"on rank 2", `"bias"`, "is trained on one of them only"}},
		"a config":     {like, parallel.Config{BucketBytes: 77}, []string{"rank 2 has another Config"}},
	} {
		for n, err := range rankGroup.All(func(r *tapetest.Rank) error {
			in := nn.Init(r.Ctx, r.RT, nn.Seed(1))
			model, cfg := like(in), parallel.Config{}
			if r.N == 2 {
				model, cfg = c.other(in), c.cfg
			}
			dp, err := parallel.New(r.Ctx, r.Comm, model, cfg)
			return errors.Join(err, dp.Close(), in.Close())
		}) {
			require.ErrorIs(t, err, device.ErrMismatch, "%s, rank %d", name, n)
			for _, w := range append(c.words, "parallel: New: ", fmt.Sprintf("rank %d of 3", n)) {
				require.Contains(t, err.Error(), w, name)
			}
		}
	}

	r := rankGroup.Ranks[0]
	in := nn.Init(r.Ctx, r.RT, nn.Seed(1))
	var none context.Context
	alone := tapetest.NewCrew(t, 1, 64<<20, 0).Ranks[0]
	other := nn.Init(alone.Ctx, alone.RT, nn.Seed(1))
	model := other.Linear(2, 2)
	dp, err := parallel.New(alone.Ctx, alone.Comm, model, parallel.Config{})
	require.NoError(t, err)
	frozen := other.Linear(2, 2)
	frozen.Parameters().SetRequiresGrad(false)
	for words, f := range map[string]func() (*parallel.Parallel, error){
		"must not be nil": func() (*parallel.Parallel, error) {
			return parallel.New(none, r.Comm, in.Linear(1, 1), parallel.Config{})
		},
		"the model must not": func() (*parallel.Parallel, error) {
			return parallel.New(r.Ctx, r.Comm, nil, parallel.Config{})
		},
		"buckets of -1 bytes": func() (*parallel.Parallel, error) {
			return parallel.New(r.Ctx, r.Comm, in.Linear(1, 1), parallel.Config{BucketBytes: -1})
		},
		"the communicator on ": func() (*parallel.Parallel, error) {
			return parallel.New(r.Ctx, r.Comm, model, parallel.Config{})
		},
		"is in another Parallel": func() (*parallel.Parallel, error) {
			return parallel.New(alone.Ctx, alone.Comm, model, parallel.Config{})
		},
		"no parameters that are trained": func() (*parallel.Parallel, error) {
			return parallel.New(alone.Ctx, alone.Comm, frozen, parallel.Config{})
		},
		"two runtimes": func() (*parallel.Parallel, error) {
			return parallel.New(alone.Ctx, alone.Comm, nn.Sequential{frozen, in.Linear(2, 2)}, parallel.Config{})
		},
	} {
		_, err := f()
		require.Error(t, err, words)
		require.True(t, strings.HasPrefix(err.Error(), "parallel: New: ") && strings.Contains(err.Error(), words), "%v\nwant %s", err, words)
	}
	x := other.Tensor([]float64{1, 2}, 1, 2)
	require.NoError(t, dp.Close())
	require.NoError(t, dp.Close())
	tape := autograd.NewTape(alone.Ctx, alone.RT)
	_, err = tape.Backward(tape.Sum(model.Forward(tape, tape.Input(x))))
	require.NoError(t, err, "the parameters are the program's alone")
	require.NoError(t, errors.Join(tape.Close(), model.Parameters().ZeroGrad(alone.Ctx), other.Close(), in.Close(), alone.Comm.Close()))
	rankGroup.Part()
}

// TestNoSyncEndsWithAnErrorOrAPanic: after an error or a panic in NoSync the next pass is reduced.
func TestNoSyncEndsWithAnErrorOrAPanic(t *testing.T) {
	failure := errors.New("a batch that can't be read")
	for _, f := range []func() error{func() error { return failure }, func() error { panic(failure) }} {
		c := mlpCourse.brief()
		c.step = func(s *trainingRank, k int) error {
			err := func() (err error) {
				defer func() {
					if r := recover(); r != nil {
						err = r.(error)
					}
				}()
				return s.dp.NoSync(f)
			}()
			before := parallel.PassesOf(s.dp)
			if !errors.Is(err, failure) {
				return fmt.Errorf("NoSync: %w, want %w", err, failure)
			}
			err = s.eager(k)
			if parallel.PassesOf(s.dp) != before+1 {
				return errors.Join(err, errors.New("the pass after NoSync was not reduced"))
			}
			return err
		}
		c.trainOn(t, 2)
	}
}

// TestAPassOfOneRankMayFailInNoSync: no other rank waits for a pass in NoSync that fails on one
// rank, so the next pass is reduced.
func TestAPassOfOneRankMayFailInNoSync(t *testing.T) {
	failure := errors.New("a batch that can't be read")
	c := mlpCourse.brief()
	c.step = func(s *trainingRank, k int) error {
		err := s.dp.NoSync(func() error {
			if s.N == 0 {
				return failingStep(s, failure)
			}
			return s.pass(k)
		})
		if s.N == 0 && errors.Is(err, failure) {
			err = nil
		}
		return errors.Join(err, nn.ParametersOf(s.model).ZeroGrad(s.Ctx), s.eager(k), s.dp.Err(), s.dp.Verify(s.Ctx))
	}
	c.trainOn(t, 2)
}
