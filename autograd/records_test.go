package autograd

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor"
)

// core is a runtime for tests of unexported parts. Its end checks that nothing leaked.
type core struct {
	t   *testing.T
	ctx context.Context
	rt  *tensor.Runtime
}

func openCore(t *testing.T) *core {
	t.Helper()
	s := stacktest.New(t, stacktest.Config{Capacity: 64 << 20, Workspace: true})
	rt, err := tensor.NewRuntime(s.Cache, s.Pool, s.Stream)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, rt.Close())
		assert.Zero(t, s.Cache.Stats().Allocation.All.Current, "live blocks")
	})
	return &core{t, context.Background(), rt}
}

func (b *core) upload(data []float64, shape ...int) *tensor.Tensor {
	b.t.Helper()
	x, err := tensor.FromSlice(b.ctx, b.rt, data, shape...)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { assert.NoError(b.t, x.Release()) })
	return x
}

func (b *core) read(x *tensor.Tensor) []float64 {
	b.t.Helper()
	s, err := tensor.ToSlice[float64](b.ctx, x, nil)
	require.NoError(b.t, err)
	return s
}

// TestRecords: a record is empty when an operation takes it, belongs to one operation at a time,
// and is returned once: after its backward step, at once by an operation that is not recorded, or
// when the tape ends. The Call of a Func is never returned.
func TestRecords(t *testing.T) {
	b := openCore(t)
	x := b.upload([]float64{1, 2, 3, 4}, 2, 2)
	for _, c := range []struct {
		name    string
		tape    *Tape
		record  bool
		leaf    bool
		records int // that come back
	}{
		{"recorded", NewTape(b.ctx, b.rt), true, true, 3},
		{"a constant", NewTape(b.ctx, b.rt), true, false, 1},
		{"NoGrad", NoGrad(b.ctx, b.rt), false, false, 1},
	} {
		tape := c.tape
		tape.records = records{} // those of other tests
		for range 2 {
			in := tape.Input(x).Keep()
			if c.leaf {
				in = tape.Leaf(x).Keep()
			}
			y := in
			for range 3 {
				y = tape.LayerNorm(y, nil, nil, 0, 2)
				require.NoError(t, tape.Err(), c.name)
			}
			seen := map[*Call]bool{}
			if c.leaf {
				require.Nil(t, tape.records.take(opRowNorm.kind.number), c.name)
				for i := range tape.nodes {
					call := tape.nodes[i].call
					require.False(t, seen[call])
					require.Equal(t, []int{2}, call.step.(*rowNorm).shape.list())
					seen[call] = true
				}
				require.Len(t, seen, 3)
				tape.dropNodes(0)
			}
			free := freeRecords(tape, &opRowNorm.kind)
			for _, call := range tape.records.free[opRowNorm.kind.number] {
				require.Same(t, spent, call.tape)
				require.Nil(t, call.out)
				require.Zero(t, *call.step.(*rowNorm))
				require.Equal(t, [4]*Variable{}, call.room.inputs)
				require.Equal(t, [6]*tensor.Tensor{}, call.room.saved)
				require.Equal(t, [2]*tensor.Tensor{}, call.room.own)
			}
			require.Equal(t, c.records, free, c.name)
		}
		tape.LayerNorm(tape.Leaf(x), nil, nil, 0, 2)
		var unrun []*Call
		for i := range tape.nodes {
			unrun = append(unrun, tape.nodes[i].call)
		}
		require.Equal(t, c.record, len(unrun) > 0)
		require.NoError(t, tape.Close())
		for _, call := range unrun {
			require.Same(t, spent, call.tape, c.name)
		}
	}

	// A node that fails before its backward step returns its record too.
	tape := NewTape(b.ctx, b.rt)
	loss := tape.Sum(tape.LayerNorm(tape.Leaf(x), nil, nil, 0, 2))
	require.NoError(t, tape.Err())
	failing := tape.nodes[0].call
	require.NoError(t, b.rt.AddInPlace(b.ctx, x, x))
	_, err := tape.Backward(loss)
	require.ErrorContains(t, err, "LayerNorm backward: overwritten")
	require.Same(t, spent, failing.tape)
	require.Error(t, tape.Close())

	var held []*Call
	tape = NewTape(b.ctx, b.rt)
	y := tape.Leaf(x)
	for range 3 {
		y = tape.Func("Mine", []*Variable{y}, func(c *Call) (*tensor.Tensor, error) {
			held = append(held, c)
			return b.rt.Share(c.Context(), c.Input(0))
		}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) { return c.Grads(g, nil) })
	}
	_, err = tape.Backward(tape.Sum(y))
	require.NoError(t, err)
	require.NoError(t, tape.Close())
	for i, c := range held {
		assert.Equal(t, "Mine", c.name, "what the program holds is its own")
		for _, other := range held[i+1:] {
			assert.NotSame(t, c, other)
		}
	}
}

// freeRecords returns the number of free records of a kind.
func freeRecords(t *Tape, k *kind) int {
	if k.number >= len(t.records.free) {
		return 0
	}
	return len(t.records.free[k.number])
}

// TestRecordsOfBackward: the next tape reuses the records of Backward's steps, and computes the
// same with them.
func TestRecordsOfBackward(t *testing.T) {
	b := openCore(t)
	x := b.upload([]float64{1, 2, 3, 5, 8, 13, 21, 34}, 1, 2, 2, 2)
	w := b.upload([]float64{1, -1, 0.5, 2, 0.25, 3, -2, 1}, 2, 2, 1, 2)
	var first []float64
	for range 4 {
		tape := NewTape(b.ctx, b.rt)
		in := tape.Leaf(x)
		y := tape.Conv2d(in, tape.Leaf(w), nil, tensor.ConvConfig{Padding: []int{0, 1}})
		y = tape.MaxPool2d(y, tensor.PoolingConfig{Kernel: []int{1, 2}, Stride: []int{1}})
		y = tape.GroupNorm(tape.Narrow(y, 3, 0, 1), nil, nil, 2, 0)
		y = tape.BatchNorm(tape.AvgPool2d(y, tensor.PoolingConfig{Kernel: []int{1}}), nil, nil, tensor.BatchNormConfig{Training: true})
		_, err := tape.Backward(tape.Sum(tape.Mul(y, tape.Square(y))))
		require.NoError(t, err)
		got := b.read(in.Grad())
		if first == nil {
			first = got
		}
		require.Equal(t, first, got)
		for _, k := range []*kind{&opConv.kind, &opPool.kind, &opNarrow.kind, &opRowNorm.kind, &opBatchNorm.kind} {
			assert.Positive(t, freeRecords(tape, k))
		}
		require.NoError(t, tape.Close())
	}
}

// TestSizesOfTapes: a tape makes as many objects at once as the two before it both needed, and a
// variable of an earlier tape stays unchanged.
func TestSizesOfTapes(t *testing.T) {
	if race.Enabled {
		t.Skip("in race builds each tape is as the first")
	}
	b := openCore(t)
	x := b.upload([]float64{1}, 1)
	of := func(variables, last, before int) (first int) {
		tape := NewTape(b.ctx, b.rt)
		defer func() { require.NoError(t, tape.Close()) }()
		tape.sizes = sizes{size{variables: last}, size{variables: before}}
		tape.group = tape.sizes.variables()
		y := tape.Input(x)
		first = 1 + len(tape.fresh)
		for range variables - 1 {
			y = tape.Neg(y)
		}
		require.NoError(t, tape.Err())
		return first
	}
	assert.Equal(t, leastVariables, of(40, 0, 0))
	assert.Equal(t, 40, of(3, 40, 41))
	assert.Equal(t, leastVariables, of(3, 400, 3), "one large tape")
	assert.Equal(t, leastVariables, of(3, 3, 400))
	assert.Equal(t, mostVariables, of(3, 1<<20, 1<<20))

	tape := NewTape(b.ctx, b.rt)
	stale := tape.Neg(tape.Input(x))
	require.NoError(t, tape.Close())
	for range 3 {
		next := NewTape(b.ctx, b.rt)
		y := next.Input(x)
		for range 100 {
			y = next.Neg(y)
			require.NotSame(t, stale, y)
		}
		next.Neg(stale)
		require.ErrorIs(t, next.Err(), ErrTape)
		require.Error(t, next.Close())
	}
	assert.True(t, stale.Value().Released())
}

// TestJoinedPaths: paths are joined of their own names, and at most mostPaths are kept for another
// tape.
func TestJoinedPaths(t *testing.T) {
	p := &places{modules: map[at]*modulePlace{}, paths: map[[3]string]string{}}
	for range 2 {
		for i := range mostPaths {
			require.Equal(t, fmt.Sprint("a.", i), p.joined("a", fmt.Sprint(i), ""))
			require.Equal(t, fmt.Sprint("b.", i), p.joined("b", fmt.Sprint(i), ""))
		}
	}
	require.Equal(t, "a.b (T)", p.joined("a (S)", "b", "T"))
	require.Equal(t, "b (T)", p.joined("", "b", "T"))
	require.Equal(t, "a", p.joined("a", "", ""))
	require.Equal(t, "a", p.joined("", "a", ""))
	p.recycle()
	assert.Empty(t, p.paths)
	assert.Equal(t, "a.b", (&places{}).joined("a", "b", ""), "of a closed tape")
}
