package nn

import "github.com/cistern-ml/cistern/tensor"

// NamedTensor is a tensor with its name in a model, such as "1.running_mean". The layer owns it.
type NamedTensor struct {
	Name string
	*tensor.Tensor
}

// Buffered is implemented by layers with state besides their parameters, such as the running
// statistics of a batch norm (torch.nn.Module.register_buffer). Buffers are saved with the
// parameters, and not trained.
type Buffered interface {
	// Buffers are the layer's buffers with their names inside the layer.
	Buffers() []NamedTensor
}
