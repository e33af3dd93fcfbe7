package gorgonia

import (
	"context"
	"fmt"
	"slices"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/gorgonia/internal/strided"
)

// operand is a tensor of the engine, in the form that kernels take.
type operand struct {
	strided.Array
	d *gtensor.Dense
}

func (o operand) dtype() gtensor.Dtype { return o.d.Dtype() }

// operand checks a tensor, and returns where its elements are.
func (c *call) operand(t gtensor.Tensor) (operand, error) {
	d, ok := t.(*gtensor.Dense)
	if !ok {
		return operand{}, fmt.Errorf("%w: an operand is a %T: want a *tensor.Dense", ErrUnsupported, t)
	}
	if err := usable(d); err != nil {
		return operand{}, err
	}
	if d.Engine() != gtensor.Engine(c.e) {
		return operand{}, fmt.Errorf("%w: an operand of shape %v has the engine %T: use FromHost, or the tensor's own engine", ErrForeign, d.Shape(), d.Engine())
	}
	if len(d.Mask()) > 0 {
		return operand{}, fmt.Errorf("%w: an operand of shape %v has a mask", ErrUnsupported, d.Shape())
	}
	if !plainKind(d.Dtype().Kind()) {
		return operand{}, fmt.Errorf("%w: %v may hold Go pointers", ErrDtype, d.Dtype())
	}
	m := c.e.find(d.Raw)
	if m == nil {
		return operand{}, fmt.Errorf("%w: an operand of shape %v was freed, or made from Go memory (use DeviceEngine.New)", ErrForeign, d.Shape())
	}
	a := strided.Array{Ptr: device.Ptr(address(d.Raw)), Size: int(d.Dtype().Size()), Dims: slices.Clone(d.Shape()), Strides: stridesOf(d)}
	if s := a.Span(); uintptr(s.Ptr)+uintptr(s.Bytes) > m.end() {
		return operand{}, fmt.Errorf("%w: an operand of shape %v and strides %v extends beyond its memory", ErrInvalid, d.Shape(), a.Strides)
	}
	return operand{a, d}, nil
}

// stridesOf returns a stride for each dimension. The library uses a single stride for column-major
// vectors, and none for scalars.
func stridesOf(d *gtensor.Dense) []int {
	shape, strides := d.Shape(), d.Strides()
	if len(strides) == len(shape) {
		return slices.Clone(strides)
	}
	all := make([]int, len(shape))
	for i, n := range shape {
		if n != 1 && len(strides) == 1 {
			all[i] = strides[0]
		}
	}
	return all
}

// alike returns the operands, which must have the same type.
func (c *call) alike(ts ...gtensor.Tensor) ([]operand, error) {
	all := make([]operand, len(ts))
	for i, t := range ts {
		o, err := c.operand(t)
		if err != nil {
			return nil, err
		}
		all[i] = o
	}
	for _, o := range all {
		if o.dtype() != all[0].dtype() {
			return nil, fmt.Errorf("%w: %v and %v: want the same type", ErrDtype, all[0].dtype(), o.dtype())
		}
	}
	return all, nil
}

// floats returns the operands, which must have the same floating-point type.
func (c *call) floats(ts ...gtensor.Tensor) ([]operand, strided.Type, error) {
	all, err := c.alike(ts...)
	if err != nil {
		return nil, 0, err
	}
	t, err := floatType(all[0].dtype())
	return all, t, err
}

func floatType(dt gtensor.Dtype) (strided.Type, error) {
	switch dt {
	case gtensor.Float32:
		return strided.Float32, nil
	case gtensor.Float64:
		return strided.Float64, nil
	}
	return 0, fmt.Errorf("%w %v: the device has kernels for float32 and float64", ErrDtype, dt)
}

// like returns o with a's dimensions. Their shapes must be equal, except that vectors may be (n),
// (n, 1) or (1, n).
func (o operand) like(a operand) (strided.Array, error) {
	if !o.d.Shape().Eq(a.d.Shape()) {
		return o.Array, fmt.Errorf("%w: %v and %v: want equal shapes", ErrShape, a.d.Shape(), o.d.Shape())
	}
	return reshaped(o.Array, a.Dims), nil
}

// reshaped returns a vector with other dimensions.
func reshaped(a strided.Array, dims []int) strided.Array {
	if slices.Equal(a.Dims, dims) {
		return a
	}
	stride := 0
	for i, n := range a.Dims {
		if n != 1 {
			stride = a.Strides[i]
		}
	}
	a.Dims, a.Strides = slices.Clone(dims), make([]int, len(dims))
	for i, n := range dims {
		if n != 1 {
			a.Strides[i] = stride
		}
	}
	return a
}

// result allocates a tensor with uninitialized elements.
func (c *call) result(dt gtensor.Dtype, shape gtensor.Shape) (operand, error) {
	m, err := c.e.alloc(int64(shape.TotalSize()) * int64(dt.Size()))
	if err != nil {
		return operand{}, err
	}
	return c.wrap(m, dt, shape), nil
}

// wrap returns a tensor for newly allocated memory.
func (c *call) wrap(m *memory, dt gtensor.Dtype, shape gtensor.Shape) operand {
	d := c.e.tensorAt(m.addr, dt, shape)
	c.made = append(c.made, d)
	return operand{strided.Dense(device.Ptr(m.addr), int(dt.Size()), slices.Clone(shape)...), d}
}

// tensorAt returns a row-major tensor at an address.
func (e *DeviceEngine) tensorAt(addr uintptr, dt gtensor.Dtype, shape gtensor.Shape) *gtensor.Dense {
	return gtensor.New(gtensor.Of(dt), gtensor.WithShape(shape...), gtensor.WithEngine(e),
		gtensor.FromMemory(addr, uintptr(shape.TotalSize())*dt.Size()))
}

// adopt turns a result of the runtime into a tensor of the engine, without a copy.
func (c *call) adopt(t *tensor.Tensor, dt gtensor.Dtype, shape gtensor.Shape) (operand, error) {
	m, err := c.e.hold(t, t.Bytes())
	if err != nil {
		return operand{}, err
	}
	return c.wrap(m, dt, shape), nil
}

// temp allocates memory that is released when the call is queued.
func (c *call) temp(size int, dims ...int) (strided.Array, error) {
	t, err := c.e.rt.New(context.Background(), tensor.Uint8, gtensor.ProdInts(dims)*size)
	if err != nil {
		return strided.Array{}, err
	}
	c.temps = append(c.temps, t)
	return strided.Dense(start(t), size, dims...), nil
}

// dense returns a, or a contiguous copy of it.
func (c *call) dense(a strided.Array) (strided.Array, error) {
	if a.IsDense() {
		return a, nil
	}
	return c.copied(a)
}

// copied returns a temporary, contiguous copy of a.
func (c *call) copied(a strided.Array) (strided.Array, error) {
	t, err := c.temp(a.Size, a.Dims...)
	if err != nil {
		return t, err
	}
	return t, c.e.kernels.Copy(t, a)
}

// tensor returns a dense array as a tensor of the runtime, for the runtime's operations.
func (c *call) tensor(a strided.Array, dt gtensor.Dtype) (*tensor.Tensor, error) {
	hold := c.holding(a)
	if hold == nil {
		return nil, ErrForeign
	}
	v, err := c.e.rt.ViewAs(context.Background(), hold, int64(a.Ptr-start(hold)), ownDtype(dt), a.Dims...)
	if err == nil {
		c.temps = append(c.temps, v)
	}
	return v, err
}
