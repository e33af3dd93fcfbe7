package autograd

// wrapped is a layer in another one that changes how it is run, and not what it has.
type wrapped struct{ Layer }

// Parameters are the layer's.
func (l wrapped) Parameters() Parameters { return parametersIn(l) }

// Buffers are the layer's.
func (l wrapped) Buffers() []NamedTensor { return buffersOf(l, true).buffers }
