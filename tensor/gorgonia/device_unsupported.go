package gorgonia

import (
	"fmt"

	gtensor "gorgonia.org/tensor"
)

// The operations that there are no kernels for. Without these methods the library would say so without the type, and of Map by
// printing the tensor, which ends the program.

func unsupported(op string, t gtensor.Tensor) error {
	what := "nil"
	if d, ok := t.(*gtensor.Dense); ok && d != nil {
		what = fmt.Sprint(d.Dtype())
	}
	return fmt.Errorf("gorgonia: %s of %s: %w: the device has no kernel for it: use ToHost", op, what, ErrUnsupported)
}

// Map is an error: functions of the program's run on the host.
func (e *DeviceEngine) Map(_ any, a gtensor.Tensor, _ ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return nil, unsupported("Map", a)
}

// Reduce is an error: functions of the program's run on the host.
func (e *DeviceEngine) Reduce(_ any, a gtensor.Tensor, _ int, _ any, _ ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return nil, unsupported("Reduce", a)
}

// OptimizedReduce is an error: functions of the program's run on the host.
func (e *DeviceEngine) OptimizedReduce(a gtensor.Tensor, _ int, _, _, _, _ any, _ ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return nil, unsupported("OptimizedReduce", a)
}

// Prod is an error: there is no kernel for it.
func (e *DeviceEngine) Prod(a gtensor.Tensor, _ ...int) (gtensor.Tensor, error) {
	return nil, unsupported("Prod", a)
}

// Diag is an error: there is no kernel for it.
func (e *DeviceEngine) Diag(a gtensor.Tensor) (gtensor.Tensor, error) {
	return nil, unsupported("Diag", a)
}

// SVD is an error: there is no kernel for it.
func (e *DeviceEngine) SVD(a gtensor.Tensor, _, _ bool) (s, u, v gtensor.Tensor, err error) {
	return nil, nil, nil, unsupported("SVD", a)
}

// SelectByIndices is an error: there is no kernel for it.
func (e *DeviceEngine) SelectByIndices(a, _ gtensor.Tensor, _ int, _ ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return nil, unsupported("SelectByIndices", a)
}

// SelectByIndicesB is an error: there is no kernel for it.
func (e *DeviceEngine) SelectByIndicesB(input, _, _ gtensor.Tensor, _ int, _ ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return nil, unsupported("SelectByIndicesB", input)
}

// HasNaN is an error: there is no kernel for it.
func (e *DeviceEngine) HasNaN(t gtensor.Tensor) (bool, error) { return false, unsupported("HasNaN", t) }

// HasInf is an error: there is no kernel for it.
func (e *DeviceEngine) HasInf(t gtensor.Tensor) (bool, error) { return false, unsupported("HasInf", t) }
