package tensor

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache"
)

// seen is a log of the calls of OnOperation.
type seen struct{ calls []string }

func (o *seen) operation(ctx context.Context, s device.Stream, name string, about fmt.Stringer) func() {
	o.calls = append(o.calls, fmt.Sprintf("%s of %q on %v: %s", name, memcache.LabelOf(ctx).Module, s != nil, about))
	return func() { o.calls = append(o.calls, "queued") }
}

// take returns the calls since the last take.
func (o *seen) take() []string {
	calls := o.calls
	o.calls = nil
	return calls
}

// TestOnOperation: operations are reported with their context and shapes, and their end when they
// are queued. An operation that is computed in a wider dtype is reported as the original one.
func TestOnOperation(t *testing.T) {
	var o seen
	r := newRig(t, 64<<20, OnOperation(o.operation))
	a, b := put(r, []float32{1, 2, 3, 4, 5, 6}, 2, 3), put(r, []float32{1, 2, 3}, 3)
	defer a.Release()
	defer b.Release()
	o.take()

	sum, err := r.Add(memcache.WithModule(r.ctx, "head"), a, b)
	require.NoError(t, err)
	defer sum.Release()
	assert.Equal(t, []string{`add of "head" on true: float32[2,3] = float32[2,3], float32[3]`, "queued"}, o.take())

	double, err := r.Add(r.ctx, b, b)
	require.NoError(t, err)
	defer double.Release()
	assert.Equal(t, []string{`add of "" on true: float32[3] = float32[3], float32[3]`, "queued"}, o.take(), "the shapes before are forgotten")
	both, err := r.Cat(r.ctx, 0, b, double)
	require.NoError(t, err)
	defer both.Release()
	assert.Equal(t, []string{`place of "" on true: float32[3] = float32[3], float32[3]`, "queued", `place of "" on true: float32[3] = float32[3], float32[3]`, "queued"}, o.take())

	narrow, err := r.Convert(r.ctx, a, BFloat16)
	require.NoError(t, err)
	defer narrow.Release()
	assert.Equal(t, []string{`convert of "" on true: bfloat16[2,3] = float32[2,3]`, "queued"}, o.take())
	mean, err := r.Mean(r.ctx, narrow, 1)
	require.NoError(t, err)
	defer mean.Release()
	assert.Equal(t, []string{`sum of "" on true: bfloat16[2] = bfloat16[2,3]`, "queued"}, o.take())

	g1, g2 := put(r, []float32{1, 1, 1, 1, 1, 1}, 2, 3), put(r, []float32{1, 1, 1}, 3)
	defer g1.Release()
	defer g2.Release()
	o.take()
	require.NoError(t, Step(r.ctx, r.Runtime, []Update[SGD]{{Rule: SGD{LR: 1}, P: a, G: g1}, {Rule: SGD{LR: 1}, P: b, G: g2}}))
	calls := o.take()
	require.Len(t, calls, 2, "a step of all parameters is one operation")
	assert.Contains(t, calls[0], "float32[2,3] = float32[2,3], float32[2,3]")
	assert.Contains(t, calls[0], ", the first of 2")

	narrowGrad, err := r.Convert(r.ctx, g2, BFloat16)
	require.NoError(t, err)
	defer narrowGrad.Release()
	o.take()
	require.NoError(t, Step(r.ctx, r.Runtime, []Update[SGD]{{Rule: SGD{LR: 1}, P: a, G: g1}, {Rule: SGD{LR: 1}, P: b, G: narrowGrad}}))
	assert.Equal(t, []string{`sgd step of "" on true: float32[2,3] = float32[2,3], float32[2,3]; float32[3] = float32[3], bfloat16[3]`, "queued"}, o.take(), "of several calls, too")
	require.NoError(t, r.ClipValue(r.ctx, 1, g1, g2))
	assert.Equal(t, []string{`bound of "" on true: float32[2,3] = float32[2,3], the first of 2`, "queued"}, o.take())

	_, err = r.Add(r.ctx, a, narrow)
	require.Error(t, err)
	assert.Empty(t, o.take(), "it was refused before it was an operation")
}

// TestOnOperationTwice: the functions of both options are called for an operation, and for its end.
func TestOnOperationTwice(t *testing.T) {
	var a, b seen
	silent := func(context.Context, device.Stream, string, fmt.Stringer) func() {
		a.calls = append(a.calls, "silent")
		return nil
	}
	r := newRig(t, 64<<20, OnOperation(a.operation), OnOperation(nil), OnOperation(silent), OnOperation(b.operation))
	x := put(r, []float32{1, 2, 3}, 3)
	defer x.Release()
	a.take()
	b.take()
	y, err := r.Add(r.ctx, x, x)
	require.NoError(t, err)
	defer y.Release()
	const add = `add of "" on true: float32[3] = float32[3], float32[3]`
	assert.Equal(t, []string{add, "silent", "queued"}, a.take())
	assert.Equal(t, []string{add, "queued"}, b.take())
}

// TestOnOperationOfReplays: a capture is not reported, and each replay is, with its operations.
func TestOnOperationOfReplays(t *testing.T) {
	var o seen
	r := newRig(t, 64<<20, OnOperation(o.operation))
	x := put(r, []float32{1, 2, 3, 4, 5, 6}, 2, 3)
	defer x.Release()
	// the first capture allocates memory that the runtime keeps
	r.capture(r.ctx, func(context.Context) error { return nil })
	o.take()
	g := r.capture(r.ctx, func(ctx context.Context) error {
		return errors.Join(r.MulScalarInPlace(ctx, x, 2), r.AddInPlace(ctx, x, x), r.MulScalarInPlace(ctx, x, 2))
	})
	assert.Empty(t, o.take(), "nothing has run")
	for range 2 {
		require.NoError(t, g.Replay(memcache.WithModule(r.ctx, "graph")))
	}
	if invariants.Enabled { // builds with invariants overwrite freed memory
		return
	}
	one := []string{`replay of a graph of 3 nodes of "graph" on true: mul scalar 2, add 1`, "queued"}
	assert.Equal(t, append(one, one...), o.take())
}

// TestWithoutOnOperation: the backend is not wrapped.
func TestWithoutOnOperation(t *testing.T) {
	r := newRig(t, 1<<20)
	_, ok := r.backend.(observed)
	assert.False(t, ok)
}
