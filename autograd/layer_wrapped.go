package autograd

// wrapped is a layer in another one that changes how it is run, and not what it has.
type wrapped struct{ Layer }

// Parameters are the layer's.
func (l wrapped) Parameters() Parameters {
	if l.Layer == nil {
		return nil
	}
	return l.Layer.Parameters()
}

// Buffers are the layer's.
func (l wrapped) Buffers() []NamedTensor {
	if b, ok := l.Layer.(Buffered); ok {
		return b.Buffers()
	}
	return nil
}
