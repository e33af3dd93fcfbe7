package nn

import (
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// Embedding is a table of vectors, looked up by index (torch.nn.Embedding).
type Embedding struct {
	Weight *autograd.Parameter // (rows, n)
	Config tensor.EmbeddingConfig
}

// Forward returns the vectors at the indices x, int32 or int64 of any shape. The result has x's
// shape with n as a further dimension.
func (e *Embedding) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	if e == nil {
		return noLayer(t, "Embedding")
	}
	return t.Layer(e.Weight, "weight", func() *autograd.Variable { return t.Embedding(x, t.Param(e.Weight), e.Config) })
}

// Parameters are "weight".
func (e *Embedding) Parameters() autograd.Parameters {
	if e == nil {
		return nil
	}
	return autograd.Parameters{{Name: "weight", Parameter: e.Weight}}
}

// Embedding makes a table of vectors of n numbers (torch.nn.Embedding). It takes [PaddingIndex].
// The numbers are drawn from the standard normal distribution, PyTorch's default; those of the
// padding row are 0.
func (in *Initializer) Embedding(rows, n int, options ...LayerOption) *Embedding {
	call := fmt.Sprintf("Embedding(%d, %d)", rows, n)
	o := in.options(call, options, "PaddingIndex")
	e := &Embedding{Config: o.sequence.embedding()}
	zeros := -1 // row
	if p := o.sequence.padding; p != nil {
		if zeros = p[0]; zeros < 0 {
			zeros += rows
		}
	}
	if rows < 1 || n < 1 || zeros >= rows || o.sequence.padding != nil && zeros < 0 {
		in.fail(call, fmt.Errorf("%w: padding index %v: want at least one vector of one number, and one of the vectors as padding", autograd.ErrInvalid, o.sequence.padding))
	}
	drawn := 0
	e.Weight = in.parameter(call, func() float64 {
		row := drawn / n
		drawn++
		if v := in.rand.NormFloat64(); row != zeros {
			return v
		}
		return 0
	}, rows, n)
	return e
}
