package tensor

import (
	"errors"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
)

// Classes of errors, for errors.Is.
var (
	// ErrShape: the shapes do not fit the operation, or each other.
	ErrShape error = argument("wrong shape")
	// ErrDtype: the operation does not take elements of this type.
	ErrDtype error = argument("wrong dtype")
	// ErrReleased: the tensor was released.
	ErrReleased = errors.New("tensor was released")
	// ErrOffloaded: the tensor's memory is on the host; [Offloader.Fetch] brings it back.
	ErrOffloaded = errors.New("tensor is offloaded")
	// ErrRuntime: the tensor belongs to another runtime.
	ErrRuntime error = argument("tensor of another runtime")
	// ErrInvalid: an argument is wrong; it is [device.ErrInvalid]. ErrShape, ErrDtype, ErrRuntime,
	// ErrLabel and ErrIndex are classes of it.
	ErrInvalid = device.ErrInvalid
	// ErrLabel: a class label is not in [0, classes).
	ErrLabel error = argument("label out of range")
	// ErrIndex: an index is not in [0, size of its dimension).
	ErrIndex error = argument("index out of range")
	// ErrClosed: the runtime is closed.
	ErrClosed = errors.New("runtime is closed")
	// ErrUnsupported: the device has no kernels for tensors.
	ErrUnsupported = backend.ErrUnsupported
	// ErrCapturing: the call is not possible while the runtime's stream is captured; it is
	// [device.ErrCapturing].
	ErrCapturing = device.ErrCapturing
	// ErrLeaked: tensors were still live when the runtime closed.
	ErrLeaked = errors.New("tensors were not released")
)

// argument is a class of errors about wrong arguments. Each of them is [ErrInvalid], too.
type argument string

func (e argument) Error() string      { return string(e) }
func (argument) Is(target error) bool { return target == ErrInvalid }
