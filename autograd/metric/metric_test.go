package metric_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/metric"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// seen are the values of three metrics.
type seen struct {
	loss, accuracy float64
	matrix         metric.Matrix
}

// metrics are the three.
type metrics struct {
	loss, accuracy *metric.Mean
	confusion      *metric.Confusion
}

func newMetrics(ctx context.Context, in *nn.Initializer, ignore ...int) metrics {
	rt := in.Runtime()
	return metrics{nn.Own(in, metric.NewMean(ctx, rt, ignore...)), nn.Own(in, metric.NewMean(ctx, rt, ignore...)), nn.Own(in, metric.NewConfusion(ctx, rt, 3, ignore...))}
}

func (m metrics) add(t *autograd.Tape, logits *autograd.Variable, y *tensor.Tensor) (loss *autograd.Variable) {
	m.accuracy.AddHits(t, logits, t.Input(y))
	m.confusion.Add(t, logits, y)
	loss = t.CrossEntropy(logits, y)
	m.loss.Add(t, loss, y)
	return loss
}

func (m metrics) see(t testing.TB, ctx context.Context) (s seen) {
	var errs [3]error
	s.loss, errs[0] = m.loss.Value(ctx)
	s.accuracy, errs[1] = m.accuracy.Value(ctx)
	s.matrix, errs[2] = m.confusion.Value(ctx)
	require.NoError(t, errors.Join(errs[:]...))
	return s
}

func (m metrics) reset(ctx context.Context) error {
	return errors.Join(m.loss.Reset(ctx), m.accuracy.Reset(ctx), m.confusion.Reset(ctx))
}

// TestMetricsOfGraphs: a captured step adds at each replay, so it does not wait for the device.
// Reset sets the sums to 0.
func TestMetricsOfGraphs(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1), nn.ComputeDtype(tensor.BFloat16))
	model := nn.Sequential{in.Linear(2, 3)}
	x, y := in.Tensor([]float64{1, 2, -1, 1, 0, 3, 2, 2}, 4, 2), in.Labels([]int{0, 2, 1, 2}, 3)
	sgd := nn.Own(in, optim.NewSGD(model.Parameters(), optim.SGDConfig{LR: new(0.0)}))
	m := newMetrics(b.Ctx, in)
	step := func(context.Context) error {
		for _, tape := range in.Steps(1) {
			optim.Minimize(tape, m.add(tape, model.Forward(tape, tape.Input(x)), y), sgd)
		}
		return in.Err()
	}
	require.NoError(t, step(b.Ctx))
	once := m.see(t, b.Ctx)
	require.Equal(t, once.accuracy, once.matrix.Accuracy())
	graph, err := b.RT.Capture(b.Ctx, step)
	require.NoError(t, err)
	require.NoError(t, m.reset(b.Ctx))
	live := b.Live()
	for range 3 {
		require.NoError(t, graph.Replay(b.Ctx))
	}
	require.Equal(t, live, b.Live())
	thrice := m.see(t, b.Ctx)
	require.InDelta(t, once.loss, thrice.loss, 1e-12)
	require.Equal(t, once.accuracy, thrice.accuracy)
	for i, row := range once.matrix {
		for j, n := range row {
			require.Equal(t, 3*n, thrice.matrix[i][j])
		}
	}
	require.NoError(t, errors.Join(graph.Close(), in.Close()))
}

// TestMetricsOfRanks: after an AllReduce of Sums, ranks have the values of one rank with all rows.
func TestMetricsOfRanks(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var rows []float32
	var labels []int32
	for range 12 {
		rows, labels = append(rows, float32(r.NormFloat64()), float32(r.NormFloat64()), float32(r.NormFloat64())), append(labels, int32(r.IntN(3)))
	}
	parts := [][2]int{{0, 5}, {5, 12}}
	var got [2]seen
	look := func(ctx context.Context, rt *tensor.Runtime, from, to int, between func(in *nn.Initializer, m metrics) error) (s seen) {
		in := nn.Init(ctx, rt)
		m := newMetrics(ctx, in)
		tape := autograd.NoGrad(ctx, rt)
		y := autograd.Upload(tape, labels[from:to]).Keep()
		m.add(tape, autograd.Upload(tape, rows[3*from:3*to], to-from, 3).Keep(), y.Value())
		require.NoError(t, errors.Join(tape.Close(), between(in, m)))
		s = m.see(t, ctx)
		require.NoError(t, in.Close())
		return s
	}
	crew := tapetest.NewCrew(t, 2, 64<<20, 20*time.Second)
	crew.Each(func(r *tapetest.Rank) error {
		got[r.N] = look(r.Ctx, r.RT, parts[r.N][0], parts[r.N][1], func(in *nn.Initializer, m metrics) error {
			dp, err := parallel.New(r.Ctx, r.Comm, nn.Sequential{in.Linear(1, 1)}, parallel.Config{})
			for _, x := range []*tensor.Tensor{m.loss.Sums(), m.accuracy.Sums(), m.confusion.Sums()} {
				err = errors.Join(err, dp.AllReduce(r.Ctx, x, device.ReduceSum))
			}
			return errors.Join(err, r.RT.Synchronize(r.Ctx), dp.Close())
		})
		return nil
	})
	crew.Part()
	b := tapetest.Open(t, 64<<20)
	want := look(b.Ctx, b.RT, 0, 12, func(*nn.Initializer, metrics) error { return nil })
	for _, s := range got {
		require.InDelta(t, want.loss, s.loss, 1e-6)
		require.Equal(t, want.accuracy, s.accuracy)
		require.Equal(t, want.matrix, s.matrix)
	}
}

// TestMetricsOfNothing: no rows, batches without rows, and batches in which no label counts.
func TestMetricsOfNothing(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT)
	m := newMetrics(b.Ctx, in, -100, 2)
	s := m.see(t, b.Ctx)
	require.True(t, math.IsNaN(s.loss) && math.IsNaN(s.accuracy))
	require.Zero(t, s.matrix.Accuracy())
	for _, labels := range [][]int32{{-100, 2}, {}, {1, 2}} {
		tape := autograd.NoGrad(b.Ctx, b.RT)
		y := autograd.Upload(tape, labels, len(labels)).Keep()
		logits := autograd.Upload(tape, []float32{1, 2, 3, 1, 2, 3}[:3*len(labels)], len(labels), 3).Keep()
		m.accuracy.AddHits(tape, logits, y.Value())
		m.confusion.Add(tape, logits, y.Value())
		loss := tape.MulScalar(tape.Mean(logits), 0.5)
		if len(labels) == 0 || labels[0] < 0 {
			loss = tape.Log(tape.MulScalar(tape.Sum(logits), -1)) // NaN, as the mean of none
			if len(labels) == 0 {
				loss = tape.Mean(logits)
			}
		}
		m.loss.Add(tape, loss, y.Value())
		require.NoError(t, tape.Close())
	}
	s = m.see(t, b.Ctx)
	require.Equal(t, seen{1, 0, metric.Matrix{{0, 0, 0}, {0, 0, 1}, {0, 0, 0}}}, s)
	require.NoError(t, in.Close())
	require.NoError(t, errors.Join(m.loss.Close(), m.confusion.Close()))
	_, err := m.loss.Value(b.Ctx)
	require.ErrorIs(t, err, tensor.ErrReleased)
}

// TestMetricsRefuse: an invalid call is the tape's error, and adds nothing.
func TestMetricsRefuse(t *testing.T) {
	b, other := tapetest.Open(t, 64<<20), tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT)
	m := newMetrics(b.Ctx, in)
	type onTape = *autograd.Tape
	use := func(logits *autograd.Variable, y *autograd.Variable) func(onTape) {
		return func(t onTape) { m.accuracy.AddHits(t, logits, y.Value()); m.confusion.Add(t, logits, y.Value()) }
	}
	for name, c := range map[string]struct {
		do   func(t onTape)
		want error
	}{
		"labels of another shape": {func(t onTape) {
			use(autograd.Upload(t, make([]float32, 6), 2, 3).Keep(), autograd.Upload(t, make([]int32, 2), 2, 1))(t)
		}, tensor.ErrShape},
		"labels of float32": {func(t onTape) {
			use(autograd.Upload(t, make([]float32, 6), 2, 3).Keep(), autograd.Upload(t, make([]float32, 2)))(t)
		}, tensor.ErrDtype},
		"other classes": {func(t onTape) {
			m.confusion.Add(t, autograd.Upload(t, make([]float32, 8), 2, 4), autograd.Upload(t, make([]int32, 2)).Value())
		}, tensor.ErrShape},
		"a loss of two elements": {func(t onTape) {
			m.loss.Add(t, autograd.Upload(t, make([]float32, 2)), autograd.Upload(t, make([]int32, 2)).Value())
		}, tensor.ErrShape},
		"logits that were freed": {func(t onTape) {
			x := t.ReLU(autograd.Upload(t, make([]float32, 6), 2, 3))
			t.Sum(x)
			m.accuracy.AddHits(t, x, autograd.Upload(t, make([]int32, 2)).Value())
		}, tensor.ErrReleased},
		"a metric without a runtime": {func(t onTape) {
			metric.NewMean(b.Ctx, nil).Add(t, autograd.Upload(t, make([]float32, 1)), autograd.Upload(t, make([]int32, 2)).Value())
		}, autograd.ErrInvalid},
		"no classes": {func(t onTape) {
			metric.NewConfusion(b.Ctx, b.RT, 0).Add(t, autograd.Upload(t, make([]float32, 1), 1, 1), autograd.Upload(t, make([]int32, 1)).Value())
		}, autograd.ErrInvalid},
	} {
		tape := autograd.NoGrad(b.Ctx, b.RT)
		c.do(tape)
		require.ErrorIs(t, tape.Close(), c.want, name)
	}
	away := autograd.NoGrad(other.Ctx, other.RT)
	m.loss.Add(away, autograd.Upload(away, make([]float32, 1)), autograd.Upload(away, make([]int32, 1)).Value())
	require.ErrorIs(t, away.Close(), tensor.ErrRuntime)
	m.loss.Add(nil, nil, nil)
	s := m.see(t, b.Ctx)
	require.True(t, math.IsNaN(s.loss) && math.IsNaN(s.accuracy), "nothing was added")
	require.Equal(t, metric.Matrix{{0, 0, 0}, {0, 0, 0}, {0, 0, 0}}, s.matrix)

	tape := autograd.NoGrad(b.Ctx, b.RT)
	m.confusion.Add(tape, autograd.Upload(tape, make([]float32, 9), 3, 3), autograd.Upload(tape, []int64{1, -1, 3}).Value())
	require.NoError(t, tape.Close())
	matrix, err := m.confusion.Value(b.Ctx)
	require.ErrorIs(t, err, tensor.ErrLabel)
	require.ErrorContains(t, err, "2 labels are outside of [0, 3)")
	require.Equal(t, metric.Matrix{{0, 0, 0}, {1, 0, 0}, {0, 0, 0}}, matrix)
	require.ErrorIs(t, metric.NewMean(b.Ctx, nil).Reset(b.Ctx), autograd.ErrInvalid)
	for name, zero := range map[string]interface {
		Err() error
		Reset(context.Context) error
		Close() error
	}{"Mean": new(metric.Mean), "Confusion": new(metric.Confusion)} {
		require.ErrorIs(t, zero.Err(), autograd.ErrInvalid, name)
		require.ErrorIs(t, zero.Reset(b.Ctx), autograd.ErrInvalid, name)
		require.NoError(t, zero.Close(), name)
	}
	_, err = new(metric.Mean).Value(b.Ctx)
	require.ErrorIs(t, err, autograd.ErrInvalid)
	tape = autograd.NoGrad(b.Ctx, b.RT)
	new(metric.Mean).Add(tape, autograd.Upload(tape, make([]float32, 1)), autograd.Upload(tape, make([]int32, 1)).Value())
	require.ErrorIs(t, tape.Close(), autograd.ErrInvalid)
	require.NoError(t, in.Close())
}
