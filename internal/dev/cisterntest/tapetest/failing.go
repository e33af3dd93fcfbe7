package tapetest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/transfer"
)

// Failing is a bench on a host device whose calls may fail.
type Failing struct {
	*Bench
	Pool   *transfer.Pool
	Faults *failtest.Faults
}

// OpenFailing makes a failing bench for a [failtest.Suite].
func OpenFailing(t testing.TB, f *failtest.Faults) *Failing {
	t.Helper()
	return openFailing(t, f, memcache.Config{})
}

func openFailing(t testing.TB, f *failtest.Faults, cfg memcache.Config) *Failing {
	t.Helper()
	dev, err := failtest.NewHost(f, host.Config{Capacity: 64 << 20})
	require.NoError(t, err)
	s := stacktest.New(t, stacktest.Config{Device: dev, Cache: cfg})
	rt, err := tensor.NewRuntime(s.Cache, s.Pool, s.Stream)
	require.NoError(t, err)
	t.Cleanup(func() {
		// the error of a free that had no caller
		if err := rt.Close(); !cfg.NoCaching || !errors.Is(err, failtest.ErrFailed) {
			assert.NoError(t, err)
		}
	})
	m := &Failing{&Bench{T: t, Ctx: context.Background(), Dev: dev, Cache: s.Cache, RT: rt}, s.Pool, f}
	m.takeFaultWord()
	return m
}

// takeFaultWord makes the runtime allocate its memory for operations with indices.
func (m *Failing) takeFaultWord() {
	m.T.Helper()
	index, err := tensor.FromSlice(m.Ctx, m.RT, []int32{0})
	require.NoError(m.T, err)
	row, err := m.RT.IndexSelect(m.Ctx, index, 0, index)
	require.NoError(m.T, err)
	require.NoError(m.T, errors.Join(m.RT.Synchronize(m.Ctx), index.Release(), row.Release(), m.Cache.EmptyCache(m.Ctx)))
}

// FailingSuite runs rows on such benches.
func FailingSuite(t *testing.T, rows []failtest.Row[*Failing]) {
	failtest.Suite[*Failing]{Open: OpenFailing, Live: (*Failing).live, Rows: rows}.Run(t)
}

// UncachedSuite runs rows on benches whose cache calls the driver for each block, so that each
// tensor may find no memory, and each free may fail.
func UncachedSuite(t *testing.T, rows []failtest.Row[*Failing]) {
	failtest.Suite[*Failing]{Open: func(t testing.TB, f *failtest.Faults) *Failing {
		return openFailing(t, f, memcache.Config{NoCaching: true})
	}, Live: (*Failing).live, Rows: rows}.Run(t)
}

// live returns the blocks of the cache, their bytes, and the pinned memory in use, after all queued
// work.
func (m *Failing) live() any {
	if err := errors.Join(m.Dev.Synchronize(m.Ctx), m.Cache.PollFrees(), m.Pool.EmptyCache(m.Ctx)); err != nil {
		return err
	}
	s, p := m.Cache.Stats(), m.Pool.Stats()
	return [5]int64{s.Allocation.All.Current, s.AllocatedBytes.All.Current, p.ActiveRequests.Current, p.ActiveBytes.Current, p.HeldBytes.Current}
}

// Weights returns parameters of two and three numbers, which the program releases.
func (m *Failing) Weights() autograd.Parameters {
	m.T.Helper()
	var ps autograd.Parameters
	for i, data := range [][]float64{{1, -2}, {3, 0.5, -1}} {
		x, err := tensor.FromSlice(m.Ctx, m.RT, data)
		require.NoError(m.T, err)
		ps = append(ps, autograd.Named{Name: fmt.Sprint("w", i), Parameter: m.ParameterOf(x)})
	}
	return ps
}

// Squares returns the sum of the parameters' squares.
func Squares(t *autograd.Tape, ps autograd.Parameters) *autograd.Variable {
	var sum *autograd.Variable
	for _, p := range ps {
		s := t.Sum(t.Square(t.Param(p.Parameter)))
		if sum == nil {
			sum = s
		} else {
			sum = t.Add(sum, s)
		}
	}
	return sum
}

// Differentiate gives the parameters gradients.
func (m *Failing) Differentiate(ps autograd.Parameters) {
	m.T.Helper()
	tape := autograd.NewTape(m.Ctx, m.RT)
	_, err := tape.Backward(Squares(tape, ps))
	require.NoError(m.T, errors.Join(err, tape.Close()))
}

// Numbers returns the elements of a tensor of floating point or int64, or nil.
func (m *Failing) Numbers(x *tensor.Tensor) (all []float64) {
	switch {
	case x == nil:
		return nil
	case x.Dtype() == tensor.Float64:
		return Read[float64](m.Bench, x)
	case x.Dtype() == tensor.Int64:
		for _, n := range Read[int64](m.Bench, x) {
			all = append(all, float64(n))
		}
		return all
	}
	return Wide(m.Bench, x)
}

// SeeParameters returns values and gradients.
func (m *Failing) SeeParameters(ps autograd.Parameters) (all []any) {
	for _, p := range ps {
		all = append(all, m.Numbers(p.Value()), m.Numbers(p.Grad()))
	}
	return all
}

// SeeOptimizer returns an optimiser's parameters, and the state that steps have written.
func (m *Failing) SeeOptimizer(opt optim.Optimizer) []any {
	c := opt.Core()
	r := c.Record()
	all := append(m.SeeParameters(c.Parameters()), r)
	for i := range c.Parameters() {
		for _, x := range c.State(i)[:r.Tensors[i]] {
			all = append(all, m.Numbers(x))
		}
	}
	return all
}

// Release frees an optimiser's state, and its parameters with their gradients.
func (m *Failing) Release(opt optim.Optimizer) error {
	ps := opt.Core().Parameters()
	return errors.Join(opt.Close(), ps.ZeroGrad(m.Ctx), ps.Release())
}
