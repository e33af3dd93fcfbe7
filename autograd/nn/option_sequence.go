package nn

import (
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// sequenceOptions are those of layers for sequences and of embeddings.
type sequenceOptions struct {
	layers                          int // 0: 1
	bidirectional, batchFirst, relu bool
	padding                         []int
	dropout                         float64
	keys, values                    int // 0: as many as the embedding
	causal                          bool
}

// Layers is the number of recurrent layers on top of each other (num_layers). The default is 1.
func Layers(n int) LayerOption {
	return layerOption{"Layers", func(o *layerOptions) { o.sequence.layers = n }}
}

// Bidirectional runs each recurrent layer in both directions, and joins their states.
func Bidirectional() LayerOption {
	return layerOption{"Bidirectional", func(o *layerOptions) { o.sequence.bidirectional = true }}
}

// BatchFirst makes a layer take and return sequences (batch, steps, n) instead of (steps, batch,
// n). Recurrent layers copy them for that.
func BatchFirst() LayerOption {
	return layerOption{"BatchFirst", func(o *layerOptions) { o.sequence.batchFirst = true }}
}

// ReLUCell makes the cells of an RNN compute max(x + h, 0) instead of tanh(x + h)
// (nonlinearity="relu").
func ReLUCell() LayerOption {
	return layerOption{"ReLUCell", func(o *layerOptions) { o.sequence.relu = true }}
}

// DropoutBetween is the share of the numbers between two recurrent layers that is dropped in
// training.
func DropoutBetween(p float64) LayerOption {
	return layerOption{"DropoutBetween", func(o *layerOptions) { o.sequence.dropout = p }}
}

// AttentionDropout is the share of an attention's weights that is dropped in training (dropout of
// torch.nn.MultiheadAttention).
func AttentionDropout(p float64) LayerOption {
	return layerOption{"AttentionDropout", func(o *layerOptions) { o.sequence.dropout = p }}
}

// PaddingIndex is the row of an embedding that begins as zeros and gets no gradient; negative
// numbers count from the end.
func PaddingIndex(row int) LayerOption {
	return layerOption{"PaddingIndex", func(o *layerOptions) { o.sequence.padding = []int{row} }}
}

// Causal hides later positions of a sequence from each position.
func Causal() LayerOption {
	return layerOption{"Causal", func(o *layerOptions) { o.sequence.causal = true }}
}

// KeyDim and [ValueDim] are the sizes of an attention's keys and values, if they differ from that
// of the queries (kdim, vdim).
func KeyDim(n int) LayerOption {
	return layerOption{"KeyDim", func(o *layerOptions) { o.sequence.keys = n }}
}

// ValueDim is described with [KeyDim].
func ValueDim(n int) LayerOption {
	return layerOption{"ValueDim", func(o *layerOptions) { o.sequence.values = n }}
}

func (o sequenceOptions) embedding() tensor.EmbeddingConfig {
	return tensor.EmbeddingConfig{PaddingIndex: slices.Clone(o.padding)}
}
