package autograd

import (
	"errors"

	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/device"
)

// Classes of errors, for errors.Is. Errors of operations wrap those of package tensor.
var (
	// ErrTape: the variable belongs to another tape.
	ErrTape = errors.New("variable of another tape")
	// ErrSpent: the tape was run backward or closed and takes no more operations.
	ErrSpent = errors.New("tape is spent")
	// ErrNoGrad: there is nothing to differentiate.
	ErrNoGrad = errors.New("no gradient")
	// ErrStale: a value that the backward pass needs was overwritten after the forward pass.
	ErrStale = errors.New("overwritten since the forward pass")
	// ErrState: a file has other tensors than the model; it is [safetensors.ErrState].
	ErrState = safetensors.ErrState
	// ErrInvalid: an argument is wrong; it is [device.ErrInvalid].
	ErrInvalid = device.ErrInvalid
)
