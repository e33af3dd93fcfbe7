package tensor

import (
	"errors"

	"github.com/cistern-ml/cistern/device"
)

// Classes of errors, for errors.Is.
var (
	// ErrShape: the shapes do not fit the operation, or each other.
	ErrShape = errors.New("wrong shape")
	// ErrDtype: the operation does not take elements of this type.
	ErrDtype = errors.New("wrong dtype")
	// ErrReleased: the tensor was released.
	ErrReleased = errors.New("tensor was released")
	// ErrOffloaded: the tensor's memory is on the host; [Offloader.Fetch] brings it back.
	ErrOffloaded = errors.New("tensor is offloaded")
	// ErrRuntime: the tensor belongs to another runtime.
	ErrRuntime = errors.New("tensor of another runtime")
	// ErrInvalid: an argument other than a shape or dtype is wrong; it is [device.ErrInvalid].
	ErrInvalid = device.ErrInvalid
	// ErrLabel: a class label is not in [0, classes).
	ErrLabel = errors.New("label out of range")
	// ErrIndex: an index is not in [0, size of its dimension).
	ErrIndex = errors.New("index out of range")
	// ErrClosed: the runtime is closed.
	ErrClosed = errors.New("runtime is closed")
	// ErrUnsupported: the device has no kernels for tensors.
	ErrUnsupported = errors.New("not supported by the device")
	// ErrCapturing: the call is not possible while the runtime's stream is captured; it is [device.ErrCapturing].
	ErrCapturing = device.ErrCapturing
	// ErrLeaked: tensors were still live when the runtime closed.
	ErrLeaked = errors.New("tensors were not released")
)
