package tensor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// signature is an operation with operands that fit it exactly: another size of a dimension, another
// rank, another dtype, a nil or a foreign tensor instead of one of them is refused. free lists the
// exceptions that also fit: "0.1+" is dimension 1 of operand 0 larger by 1, "0.1-" smaller, "0.1"
// either; "0.one" has an additional first dimension of 1, "0.two" one of 2; "0.less" lacks the
// first dimension, "0.int64" has that dtype, "0.nil" is absent.
type signature struct {
	name     string
	free     string
	operands []operand
	call     func(ctx context.Context, r *rig, ts []*Tensor) (results, error)
}

type operand struct {
	dtype Dtype
	shape []int
}

func f32(shape ...int) operand { return operand{Float32, shape} }
func f64(shape ...int) operand { return operand{Float64, shape} }
func i32(shape ...int) operand { return operand{Int32, shape} }
func i64(shape ...int) operand { return operand{Int64, shape} }

// results returns the tensors that an operation must return.
type results []*Tensor

// done returns the result of an operation in place.
func done(err error) (results, error) { return nil, err }

func one(x *Tensor, err error) (results, error)         { return results{x}, err }
func two(x, y *Tensor, err error) (results, error)      { return results{x, y}, err }
func three(x, y, z *Tensor, err error) (results, error) { return results{x, y, z}, err }

// variant is operands of which one was changed.
type variant struct {
	name     string
	of       int
	operands []operand
	swap     func(ctx context.Context, x *Tensor) *Tensor // replaces the operand; nil: it is unchanged
	want     []error                                      // classes of the refusal
}

func (s signature) variants(other *rig) (all []variant) {
	for i, o := range s.operands {
		with := func(name string, dtype Dtype, shape []int) {
			operands := slices.Clone(s.operands)
			operands[i] = operand{dtype, shape}
			all = append(all, variant{fmt.Sprintf("%d.%s", i, name), i, operands, nil, []error{ErrShape, ErrDtype, ErrInvalid}})
		}
		for d := range o.shape {
			for by, sign := range map[int]string{-1: "-", 1: "+"} {
				shape := slices.Clone(o.shape)
				shape[d] += by
				with(fmt.Sprint(d)+sign, o.dtype, shape)
			}
		}
		with("one", o.dtype, append([]int{1}, o.shape...))
		with("two", o.dtype, append([]int{2}, o.shape...))
		if len(o.shape) > 0 {
			with("less", o.dtype, o.shape[1:])
		}
		for _, dtype := range []Dtype{Float32, Float64, BFloat16, Int32, Int64, Uint8} {
			if dtype != o.dtype {
				with(dtype.String(), dtype, o.shape)
			}
		}
		swap := func(name string, f func(ctx context.Context, x *Tensor) *Tensor, want ...error) {
			all = append(all, variant{fmt.Sprintf("%d.%s", i, name), i, s.operands, f, want})
		}
		swap("nil", func(context.Context, *Tensor) *Tensor { return nil }, ErrInvalid, ErrShape)
		swap("foreign", func(ctx context.Context, x *Tensor) *Tensor {
			x, err := other.Zeros(ctx, x.Dtype(), x.Shape()...)
			require.NoError(other.t, err)
			return x
		}, ErrRuntime)
		swap("released", func(_ context.Context, x *Tensor) *Tensor {
			require.NoError(other.t, x.Release())
			return x
		}, ErrReleased)
	}
	return all
}

// run calls the operation, and checks that a refused call has changed nothing.
func (s signature) run(r *rig, v variant) error {
	ctx, life := WithLifetime(r.ctx)
	defer func() { require.NoError(r.t, life.Close()) }()
	ts := make([]*Tensor, len(v.operands))
	for i, o := range v.operands {
		x, err := r.Zeros(ctx, o.dtype, o.shape...)
		require.NoError(r.t, err)
		if ts[i] = x; i == v.of && v.swap != nil {
			ts[i] = v.swap(ctx, x)
		}
	}
	versions := func() (all []uint64) {
		for _, x := range ts {
			all = append(all, x.Version())
		}
		return all
	}
	before := versions()
	live, _ := r.Live()
	got, err := s.call(ctx, r, ts)
	if err == nil {
		require.NoError(r.t, r.Synchronize(ctx), "%s %s", s.name, v.name)
		assert.NotContains(r.t, got, (*Tensor)(nil), "%s %s: the result", s.name, v.name)
		return nil
	}
	after, _ := r.Live()
	assert.Equal(r.t, live, after, "%s %s: the refusal left tensors behind: %v", s.name, v.name, err)
	assert.Equal(r.t, before, versions(), "%s %s: the refusal changed an operand", s.name, v.name)
	assert.Equal(r.t, 1, strings.Count(err.Error(), "tensor: "), "%v", err)
	return err
}

// Each operation accepts operands that just fit, and refuses operands that just do not, without a
// change.
func TestSignatures(t *testing.T) {
	r, other := newRig(t, 64<<20), newRig(t, 64<<20)
	for _, s := range slices.Concat(layerSignatures(), lossSignatures(), normSignatures(), pictureSignatures(), chooseSignatures(), recurrentSignatures(), samplingSignatures()) {
		require.NoError(t, s.run(r, variant{name: "itself", operands: s.operands}), s.name)
		fits := map[string]bool{}
		for _, v := range s.variants(other) {
			if err := s.run(r, v); err != nil {
				assert.True(t, slices.ContainsFunc(v.want, func(want error) bool { return errors.Is(err, want) }), "%s %s: %v", s.name, v.name, err)
			} else {
				fits[v.name] = true
			}
		}
		for less := range maps.Clone(fits) {
			either, ok := strings.CutSuffix(less, "-")
			if ok && fits[either+"+"] {
				delete(fits, less)
				delete(fits, either+"+")
				fits[either] = true
			}
		}
		want := strings.Fields(s.free)
		slices.Sort(want)
		assert.Equal(t, strings.Join(want, " "), strings.Join(slices.Sorted(maps.Keys(fits)), " "), "what fits %s of %v", s.name, s.operands)
	}
}
