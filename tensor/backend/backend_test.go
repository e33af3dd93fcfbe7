package backend

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"github.com/cistern-ml/cistern/device"
)

// TestTable: every operation has a unique name, no more operands than a call holds, and a family
// and code that identify it.
func TestTable(t *testing.T) {
	assert.EqualValues(t, len(rows), Ops, "run go generate ./tensor")
	names := map[string]Op{}
	for op := NoOp + 1; op < Ops; op++ {
		assert.NotEmpty(t, op.Name())
		assert.Zero(t, names[op.Name()], op.Name())
		names[op.Name()] = op
		assert.Equal(t, op, op.Family().Of(op.Code()), op.Name())
		assert.LessOrEqual(t, len(op.Roles())+len(op.ListRoles()), MaxArgs, op.Name())
		writes := false
		for _, r := range append(op.Roles(), op.ListRoles()...) {
			writes = writes || r&Write != 0
		}
		assert.True(t, writes, op.Name())
		if base := families[op.Family()].base; base != "" {
			assert.Equal(t, base, op.Base().Name())
		} else {
			assert.Equal(t, NoOp, op.Base())
		}
	}
	assert.Equal(t, []Role{Update, Read, Read, Read, Read, Write, Write, Write}, LSTMCell.Roles())
	assert.Equal(t, []Role{Read, Write}, Norm.ListRoles())
}

// TestSlice: items keep their own numbers, in host and device memory.
func TestSlice(t *testing.T) {
	l := List{Stride: 2, Width: 3, Refs: make([]Ref, 8), Own: []float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, Live: Ref{Ptr: 1000, Bytes: 96, Dtype: Float64}}
	for i := range l.Refs {
		l.Refs[i].Ptr = device.Ptr(i)
	}
	part := l.Slice(1, 3)
	assert.Equal(t, 2, part.Len())
	assert.EqualValues(t, 4, part.Item(1)[0].Ptr)
	assert.Equal(t, []float64{3, 4, 5, 6, 7, 8}, part.Own)
	assert.Equal(t, Ref{Ptr: 1024, Bytes: 48, Dtype: Float64}, part.Live)
	assert.Zero(t, new(List).Len())
}

// TestCalls: a call is empty if nothing that it writes has elements, and mixed if a narrow operand
// is not of its dtype.
func TestCalls(t *testing.T) {
	var pool Pool
	some := func(d Dtype) Ref { return Ref{Ptr: 8, Bytes: 16, Dtype: d} }
	for _, c := range []struct {
		op                   Op
		d                    Dtype
		refs                 []Ref
		empty, narrow, mixed bool
	}{
		{Add, Float32, []Ref{some(Float32), {Dtype: Float32}, some(Float32)}, false, false, false},
		{Add, Float32, []Ref{{Dtype: Float32}, some(Float32), some(Float32)}, true, false, false},
		{NormalizeWeightGrad, BFloat16, []Ref{{}, some(BFloat16), some(BFloat16)}, false, true, false},
		{NormalizeWeightGrad, BFloat16, []Ref{{}, {Dtype: BFloat16}, some(BFloat16)}, true, true, false},
		{CrossEntropy, BFloat16, []Ref{some(Float32), some(BFloat16), some(Int32)}, false, true, false},
		{Add, Float32, []Ref{some(Float32), some(BFloat16), some(Float32)}, false, true, true},
		{Take, Uint8, []Ref{some(Uint8), some(Uint8), some(Int64), some(Int32)}, false, false, false},
	} {
		call := pool.New(c.op, c.d)
		for _, r := range c.refs {
			call.Add(r)
		}
		assert.Equal(t, c.empty, call.Empty(), "%+v", c)
		assert.Equal(t, c.narrow, call.Narrow, "%+v", c)
		assert.Equal(t, c.mixed, call.Mixed(), "%+v", c)
		call.Free()
		assert.Zero(t, call.N)
		assert.Nil(t, call.Params())
	}
	step := pool.New(SGDStep, Float32)
	step.SetList(List{Stride: 3, Refs: []Ref{some(Float32), some(BFloat16), {}}})
	assert.True(t, step.Narrow)
	assert.True(t, step.Mixed())
}

// TestParams: parameters that do not fit are refused before they are written.
func TestParams(t *testing.T) {
	c := new(Call)
	SetParams(c, [8]float64{1, 2, 3, 4, 5, 6, 7, 8})
	assert.Equal(t, 8.0, ParamsOf[[8]float64](c.Params())[7])
	assert.Panics(t, func() { SetParams(c, [9]float64{}) })
	assert.EqualValues(t, 8*8, unsafe.Sizeof(*c.Params()))
}

// TestDtypes: the columns of each type's row agree with each other.
func TestDtypes(t *testing.T) {
	for d := NoDtype + 1; d < Dtypes; d++ {
		assert.Zero(t, d.Bits(-1)>>(8*d.Size()), "%v has %d bytes", d, d.Size())
		assert.Zero(t, d.Bits(0))
		if wide := d.Wide(); wide != NoDtype {
			assert.Equal(t, wide, d.Computes())
			assert.Greater(t, wide.Size(), d.Size())
		} else {
			assert.Equal(t, d, d.Computes())
		}
		assert.Equal(t, d.Float(), d.Missing() != 0)
	}
	assert.EqualValues(t, 0x7fc0, BFloat16.Missing())
	assert.EqualValues(t, 0x3f80, BFloat16.Bits(1))
}

// TestDtypeValues: Bits of Value returns the same bits.
func TestDtypeValues(t *testing.T) {
	for d := Float32; d < Dtypes; d++ {
		values := []float64{0, 1, 2, 77}
		if d.Float() {
			values = append(values, -1, 0.5, math.Inf(1), math.Copysign(0, -1), -3.25)
		} else if d.Size() > 1 {
			values = append(values, -1, math.MinInt32, math.MaxInt32)
		}
		for _, v := range values {
			assert.Equal(t, v, d.Value(d.Bits(v)), "%v", d)
			assert.Equal(t, math.Signbit(v), math.Signbit(d.Value(d.Bits(v))), "%v", d)
		}
	}
	assert.Zero(t, Dtype(99).Value(1))
	assert.Zero(t, Dtype(99).Bits(1))
	assert.Zero(t, Dtype(99).Size())
}
