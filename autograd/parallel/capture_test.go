package parallel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// replayed takes the steps after the first one by a graph. If mixed is true it takes odd steps
// eagerly.
func replayed(mixed bool) func(*trainingRank, int) error {
	return func(s *trainingRank, k int) (err error) {
		if k == 0 || mixed && k%2 == 1 {
			return s.eager(k)
		}
		x, y, err := s.batch(k)
		if err != nil {
			return err
		}
		if s.graph == nil {
			s.x, s.y = x, y
			s.graph, err = s.RT.Capture(s.Ctx, func(ctx context.Context) (err error) {
				s.loss, err = s.train(ctx, x, y)
				return err
			})
		} else {
			err = errors.Join(s.RT.CopyInPlace(s.Ctx, s.x, x), s.RT.CopyInPlace(s.Ctx, s.y, y), x.Release(), y.Release())
		}
		if err == nil {
			err = s.graph.Replay(s.Ctx)
		}
		if err == nil {
			err = s.lost(s.loss)
		}
		return err
	}
}

// TestVerifyEveryReplay: replayed passes count, and the fourth pass is verified before its replay.
// A capture does not count.
func TestVerifyEveryReplay(t *testing.T) {
	tapetest.NewCrew(t, 2, 64<<20, 0).Each(func(r *tapetest.Rank) (err error) {
		c := mlpCourse
		c.cfg.VerifyEvery = 2
		c.model = func(in *nn.Initializer) nn.Layer {
			return nn.Sequential{in.Linear(20, 6), in.BatchNorm(6), in.Linear(6, 5)}
		}
		s, err := c.begin(r)
		defer func() { err = errors.Join(err, s.end()) }()
		step := replayed(false)
		for k := range 3 {
			err = errors.Join(err, step(s, k), s.dp.NoSync(func() error { return s.pass(k) }), s.opt.ZeroGrad(r.Ctx))
		}
		w := nn.ParametersOf(s.model)[0].Value()
		values := make([]float32, w.Elements())
		values[0] = float32(r.N)
		if err = errors.Join(err, tensor.CopyFrom(r.Ctx, w, values)); err != nil {
			return err
		}
		if failed := s.graph.Replay(r.Ctx); !errors.Is(failed, device.ErrMismatch) {
			return fmt.Errorf("the fourth pass: %w", failed)
		}
		return nil
	})
}

// TestParallelCaptureNeedsAllGradients: a capture can't find out whether other ranks have a
// gradient, so it fails with this reason and changes nothing.
func TestParallelCaptureNeedsAllGradients(t *testing.T) {
	rankGroup := tapetest.NewCrew(t, 2, 64<<20, 0)
	rankGroup.Each(func(r *tapetest.Rank) error {
		in := nn.Init(r.Ctx, r.RT, nn.Seed(1))
		which := 0
		m := forked{in.Linear(2, 1), in.Linear(2, 1), in.Linear(2, 1), &which}
		dp, err := parallel.New(r.Ctx, r.Comm, m, parallel.Config{})
		if err != nil {
			return err
		}
		x := in.Tensor([]float64{1, 2}, 1, 2)
		pass := func(ctx context.Context) (err error) {
			tape := autograd.NewTape(ctx, r.RT)
			_, err = tape.Backward(tape.Sum(m.Forward(tape, tape.Input(x))))
			return errors.Join(err, tape.Close())
		}
		_, err = r.RT.Capture(r.Ctx, pass)
		if !errors.Is(err, tensor.ErrCapturing) || !strings.Contains(err.Error(), `parameter "b.weight" has got no gradient`) {
			return errors.Join(errors.New("Capture has gone well"), err)
		}
		if m.A.Weight.Grad() != nil {
			return errors.New("a gradient that was never computed")
		}
		return errors.Join(pass(r.Ctx), dp.Err(), m.Parameters().ZeroGrad(r.Ctx), dp.Close(), in.Close())
	})
	rankGroup.Part()
}

// TestCapturesThatFailLeaveRanksTogether: a capture that fails leaves no gradient, and the training
// continues, because no rank waits in a capture.
func TestCapturesThatFailLeaveRanksTogether(t *testing.T) {
	failure := errors.New("a step that can't be captured")
	for _, sharding := range shardings {
		crew := tapetest.NewCrew(t, 2, 64<<20, 0)
		crew.Each(func(r *tapetest.Rank) error {
			c := mlpCourse
			c.cfg.Shard = sharding
			s, err := c.begin(r)
			if err != nil {
				return errors.Join(err, s.end())
			}
			x, y, err := s.batch(0)
			for _, where := range []string{"in the step", "behind the pass"} {
				_, failed := s.RT.Capture(s.Ctx, func(ctx context.Context) error {
					if where == "in the step" { // the step's state is not allocated
						loss, err := s.train(ctx, x, y)
						return errors.Join(err, loss.Release())
					}
					tape := autograd.NewTape(ctx, s.RT)
					_, err := tape.Backward(tape.CrossEntropy(s.model.Forward(tape, tape.Input(x)), y))
					return errors.Join(err, tape.Close(), failure)
				})
				if !errors.Is(failed, failure) && !errors.Is(failed, tensor.ErrCapturing) {
					err = errors.Join(err, fmt.Errorf("%s: %w", where, failed))
				}
				for _, p := range nn.ParametersOf(s.model) {
					if part, _, _, _ := parallel.PartOf(p.Parameter); p.Grad() != nil || part != nil {
						err = errors.Join(err, fmt.Errorf("%s: %q has a gradient", where, p.Name))
					}
				}
			}
			return errors.Join(err, s.eager(0), s.dp.Verify(s.Ctx), x.Release(), y.Release(), s.end())
		})
		crew.Part()
	}
}
