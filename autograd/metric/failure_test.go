package metric_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/metric"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

type failing = tapetest.Failing

// adds is a trial of one addition to a metric that ignores a label, on a tape. See shows the sums.
func adds(m *failing, sums *tensor.Tensor, add func(t *autograd.Tape, logits *autograd.Variable, y autograd.Target), undo func() error) failtest.Trial {
	x, err := tensor.FromSlice(m.Ctx, m.RT, []float64{1, 2, 3, 3, 2, 1}, 2, 3)
	require.NoError(m.T, err)
	y, err := tensor.FromSlice(m.Ctx, m.RT, []int32{2, 1})
	require.NoError(m.T, err)
	return failtest.Trial{
		Do: func(ctx context.Context) error {
			tape := autograd.NoGrad(ctx, m.RT)
			add(tape, tape.Input(x).Keep(), y)
			return tape.Close()
		},
		See:  func() any { return tapetest.Read[float64](m.Bench, sums) },
		Undo: func() error { return errors.Join(undo(), x.Release(), y.Release()) },
	}
}

// makes is a trial of the making of a metric.
func makes(make func(ctx context.Context) (err, closed error)) func(testing.TB, *failing) failtest.Trial {
	return func(testing.TB, *failing) failtest.Trial {
		return failtest.Trial{
			Do:   func(ctx context.Context) error { err, closed := make(ctx); return errors.Join(err, closed) },
			See:  func() any { return nil },
			Undo: func() error { return nil },
		}
	}
}

var failureRows = []failtest.Row[*failing]{
	{Of: "Mean.Add", Ends: lost, Make: func(t testing.TB, m *failing) failtest.Trial {
		mean := metric.NewMean(m.Ctx, m.RT, -100)
		return adds(m, mean.Sums(), func(t *autograd.Tape, x *autograd.Variable, y autograd.Target) { mean.Add(t, t.Mean(x), y) }, mean.Close)
	}},
	{Of: "Mean.AddHits", Ends: lost, Make: func(t testing.TB, m *failing) failtest.Trial {
		mean := metric.NewMean(m.Ctx, m.RT, -100)
		return adds(m, mean.Sums(), mean.AddHits, mean.Close)
	}},
	{Of: "Confusion.Add", Ends: lost, Make: func(t testing.TB, m *failing) failtest.Trial {
		seen := metric.NewConfusion(m.Ctx, m.RT, 3, -100)
		return adds(m, seen.Sums(), seen.Add, seen.Close)
	}},
	{Of: "Mean.Value Mean.Perplexity Mean.Reset Confusion.Value Confusion.Reset", Make: func(t testing.TB, m *failing) failtest.Trial {
		mean, seen := metric.NewMean(m.Ctx, m.RT), metric.NewConfusion(m.Ctx, m.RT, 3)
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				_, err := mean.Value(ctx)
				_, err2 := mean.Perplexity(ctx)
				_, err3 := seen.Value(ctx)
				return errors.Join(err, err2, err3, mean.Reset(ctx), seen.Reset(ctx))
			},
			See:  func() any { return tapetest.Read[float64](m.Bench, seen.Sums()) },
			Undo: func() error { return errors.Join(mean.Close(), seen.Close()) },
		}
	}},
	{Of: "NewMean Mean.Err Mean.Close", Ends: lost, Make: func(t testing.TB, m *failing) failtest.Trial {
		return makes(func(ctx context.Context) (error, error) {
			mean := metric.NewMean(ctx, m.RT)
			return mean.Err(), mean.Close()
		})(t, m)
	}},
	{Of: "NewConfusion Confusion.Err Confusion.Close", Ends: lost, Make: func(t testing.TB, m *failing) failtest.Trial {
		return makes(func(ctx context.Context) (error, error) {
			seen := metric.NewConfusion(ctx, m.RT, 3)
			return seen.Err(), seen.Close()
		})(t, m)
	}},
}

// lost is the reason why a failure of Free is not undone.
var lost = map[string]string{"Free": "memory that the driver does not take back is the cache's until it is closed"}

// TestEveryFailure: whichever driver call, allocation or check of a context fails, a metric adds
// all or nothing, and adds afterwards.
func TestEveryFailure(t *testing.T) {
	t.Run("cached", func(t *testing.T) { tapetest.FailingSuite(t, failureRows) })
	t.Run("uncached", func(t *testing.T) { tapetest.UncachedSuite(t, failureRows) })
}
