package backendtest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// Run compares the operations of the runtime that open returns with plain Go code in float64. It
// runs in float32, float64, bfloat16 and float16, for each class of shapes and kind of numbers;
// with -short, for one kind of each class. It checks that operations read and write only the
// operands that the table of package backend lists. Run owns the runtime, and closes it.
//
// An operation that the backend does not support is skipped, unless it is one of [Required]. A case
// is named by its dtype, operation and number, so that a failed case can be run alone:
//
//	go test -run 'TestBackend/float32/Softmax/1236$' -backendtest.cases 2000
//
// With -short there are fewer cases, and the largest are smaller. To run such a case alone, give
// -short too.
func Run(t *testing.T, open func() (*tensor.Runtime, error)) {
	rt, err := open()
	require.NoError(t, err)
	w := watched(t, rt)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	if run(t, &rig{Runtime: rt, t: t, ctx: context.Background(), w: w}) {
		w.supportsRequired(t)
	}
	if len(w.lacks) > 0 {
		t.Logf("the backend does not support %s", strings.Join(slices.Sorted(maps.Keys(w.lacks)), ", "))
	}
}

// run reports whether all cases were run.
func run(t *testing.T, r *rig) (all bool) {
	whole := 0
	t.Run("float32", func(t *testing.T) { whole += runOf[float32](t, r, 0) })
	t.Run("float64", func(t *testing.T) { whole += runOf[float64](t, r, 0) })
	t.Run("bfloat16", func(t *testing.T) { whole += runOf[float32](t, r, tensor.BFloat16) })
	t.Run("float16", func(t *testing.T) { whole += runOf[float32](t, r, tensor.Float16) })
	return whole == 4 && *cases == 0 && !t.Failed()
}

// runOf returns 1 if all cases were run. In a narrow dtype, operands are numbers that it represents
// exactly, and results may have the error of float32 followed by one rounding.
func runOf[T kernel.Float](t *testing.T, r *rig, narrow tensor.Dtype) (whole int) {
	ops, ran := operationsOf[T](), 0
	n := caseCount(len(ops))
	for i := range n {
		op, at := ops[i%len(ops)], i/len(ops)
		t.Run(fmt.Sprintf("%s/%d", op.name, i), func(t *testing.T) {
			ran++
			random := rand.New(rand.NewPCG(seedOf(ops, i%len(ops)), uint64(at)))
			c := newTrial[T](t, r, random, op.name, narrow)
			c.class, c.kind = class(at)%classes, numbers(at/int(classes)+at)%kinds
			c.run(op)
		})
	}
	if ran == n {
		return 1
	}
	return 0
}

// skipper is the test of a trial. If the backend does not support an operation that is not
// required, it panics with a missing instead of failing.
type skipper struct {
	testing.TB
	w *watcher
}

// missing is an operation that the backend does not support.
type missing backend.Op

// attempt runs a part of a trial, and returns if the backend does not support an operation.
func (c *trial[T]) attempt(f func()) (op backend.Op) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case missing:
			op, c.r.w.unsupported = backend.Op(v), backend.NoOp
			c.r.w.lacks[op.Name()] = true
		default:
			panic(v)
		}
	}()
	f()
	return backend.NoOp
}

// skipping returns the test of a new trial.
func (r *rig) skipping(t testing.TB) testing.TB {
	if r.w == nil {
		return t
	}
	r.w.unsupported = backend.NoOp
	return &skipper{t, r.w}
}

// Errorf skips the test unless the operation is required.
func (s *skipper) Errorf(format string, args ...any) {
	s.Helper()
	if op := s.w.unsupported; op != backend.NoOp {
		if !slices.Contains(Required, op) {
			panic(missing(op))
		}
		s.TB.Errorf("the backend does not support %s, which is required", op.Name())
	}
	s.TB.Errorf(format, args...)
}

// complete fails for operations that no trial reached. In race builds, which have fewer kinds of
// numbers, it does nothing.
func (r *rig) complete(t *testing.T) {
	t.Helper()
	if !race.Enabled {
		r.w.complete(t)
	}
}
