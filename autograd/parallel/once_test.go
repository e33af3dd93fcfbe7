package parallel_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// unwrapping is a communicator that unwraps the streams of [cisterntest.Unrecordable].
type unwrapping struct{ device.Communicator }

func (u unwrapping) AllReduce(s device.Stream, dst, src device.Ptr, count int64, t device.DataType, op device.ReduceOp) error {
	return u.Communicator.AllReduce(s.(cisterntest.Unrecordable).Stream, dst, src, count, t, op)
}

func (u unwrapping) ReduceScatter(s device.Stream, dst, src device.Ptr, count int64, t device.DataType, op device.ReduceOp) error {
	return u.Communicator.ReduceScatter(s.(cisterntest.Unrecordable).Stream, dst, src, count, t, op)
}

// TestParallelTellsOnce: on a stream that records no more events every operation of a pass fails,
// and the error of the pass contains the cause once.
func TestParallelTellsOnce(t *testing.T) {
	for _, cfg := range []parallel.Config{{}, {BucketBytes: 1, FirstBucketBytes: 1}, {Shard: parallel.ShardGradients}, {Shard: parallel.ShardGradients, BucketBytes: 1, FirstBucketBytes: 1}} {
		rankGroup := tapetest.NewCrew(t, 1, 4<<20, time.Minute)
		rankGroup.Each(func(r *tapetest.Rank) error {
			c := mlpCourse
			c.cfg = cfg
			s, err := c.begin(r)
			if err != nil {
				return err
			}
			stream, comm := parallel.ExchangeOf(s.dp)
			inner := *stream
			*stream, *comm = cisterntest.Unrecordable{Stream: inner}, unwrapping{*comm}
			xs, ys, shape := s.data(0)
			y, err := tensor.FromSlice(s.Ctx, s.RT, ys)
			if err != nil {
				return err
			}
			tape := autograd.NewTape(s.Ctx, s.RT)
			_, err = tape.Backward(tape.CrossEntropy(s.model.Forward(tape, autograd.Upload(tape, xs, shape...)), y))
			require.ErrorIs(t, err, cisterntest.ErrRefused)
			require.Equal(t, 1, strings.Count(err.Error(), cisterntest.ErrRefused.Error()), "%+v: %v", cfg, err)
			_ = tape.Close() // the same
			*stream = inner
			return errors.Join(y.Release(), nn.ParametersOf(s.model).ZeroGrad(r.Ctx), s.end())
		})
	}
}

// TestParallelUnfrozen: if a parameter was frozen at New and trains later, the next pass fails on
// every rank, even if no other parameter trains, and in NoSync, but not after Close.
func TestParallelUnfrozen(t *testing.T) {
	for _, local := range []bool{false, true} {
		for _, alone := range []bool{false, true} {
			rankGroup := tapetest.NewCrew(t, 2, 4<<20, time.Minute)
			var passed sync.WaitGroup
			passed.Add(2)
			rankGroup.Each(func(r *tapetest.Rank) error {
				done := sync.OnceFunc(passed.Done)
				defer done()
				in := nn.Init(r.Ctx, r.RT, nn.Seed(1))
				model := nn.Sequential{in.Linear(3, 4), in.Linear(4, 2)}
				if err := in.Err(); err != nil {
					return err
				}
				frozen := model[0].Parameters()[1]
				frozen.SetRequiresGrad(false)
				dp, err := parallel.New(r.Ctx, r.Comm, model, parallel.Config{})
				if err != nil {
					return err
				}
				pass := func() error {
					tape := autograd.NewTape(r.Ctx, r.RT)
					x, err := tensor.FromSlice(r.Ctx, r.RT, []float32{1, 2, 3}, 1, 3)
					if err != nil {
						return err
					}
					_, err = tape.Backward(tape.Sum(model.Forward(tape, tape.Input(x))))
					_ = tape.Close() // the same
					return errors.Join(err, x.Release())
				}
				if err := pass(); err != nil {
					return err
				}
				done()
				passed.Wait() // the next pass aborts the communicator
				if frozen.Grad() != nil {
					return errors.New("it has a gradient")
				}
				frozen.SetRequiresGrad(true)
				if alone {
					for _, p := range model.Parameters() {
						if p.Parameter != frozen.Parameter {
							p.SetRequiresGrad(false)
						}
					}
				}
				if local {
					err = dp.NoSync(pass)
				} else {
					err = pass()
				}
				require.ErrorIs(t, err, autograd.ErrInvalid)
				require.ErrorContains(t, err, `parameter "0.bias" was frozen when the Parallel was made`)
				if err := dp.Close(); err != nil {
					return err
				}
				if err := pass(); err != nil {
					return err
				}
				_ = r.Comm.Close() // the pass has aborted it
				return errors.Join(model.Parameters().ZeroGrad(r.Ctx), in.Close())
			})
		}
	}
}
