package nn

import (
	"context"
	"fmt"
	"io"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/autograd/safetensors"
)

// Source provides the tensors of a trained model: a [safetensors.File], also of several shards, or
// a torchfile.File, which is in PyTorch's own format.
type Source interface {
	// Tensors lists the tensors. Their dtypes have the names of safetensors, such as "F32".
	Tensors() []safetensors.Info
	// Reader reads the elements of the tensor of that name, row-major and little-endian.
	Reader(name string) (io.Reader, error)
}

// LoadOption configures [LoadWeights].
type LoadOption func(*loadOptions)

type loadOptions struct {
	rename    func(string) string
	transpose func(string) bool
	partial   bool
}

// Rename loads each tensor of the source under the name that f returns for its name in the source.
// A tensor for which f returns "" is left out. A prefix is cut off with strings.TrimPrefix(name,
// "model."), and added with "model." + name.
func Rename(f func(name string) string) LoadOption { return func(o *loadOptions) { o.rename = f } }

// Transpose transposes the matrices for which f is true. f takes their names in the source. The
// weights of GPT-2's Conv1D, for example, are (in, out), and those of a [Linear] (out, in).
func Transpose(f func(name string) bool) LoadOption {
	return func(o *loadOptions) { o.transpose = f }
}

// Partial loads the tensors that match, at least one, and leaves the rest of the model unchanged.
// The report lists the others (load_state_dict(strict=False), which however refuses other shapes).
func Partial() LoadOption { return func(o *loadOptions) { o.partial = true } }

// LoadWeights overwrites a model's parameters and buffers with the tensors of the same names in a
// source (torch.nn.Module.load_state_dict). The model is one that [StateDict] accepts. Numbers of
// float16, bfloat16, float32 and float64 become those of the model's dtype, rounded to nearest
// even; other dtypes must be the same.
//
// Names and shapes must match, unless [Partial] is set. Otherwise the model is unchanged, and the
// error lists some of the tensors that are missing, unexpected, or of another shape, and wraps
// [safetensors.ErrState]. The report lists all of them. After a read error a part may be loaded,
// which the report lists.
//
// A parameter with several names in the model needs one of them in the source. If the source has
// several of them, their numbers must be equal, and are loaded once.
//
// As in PyTorch, num_batches_tracked of a [BatchNorm] may be missing and then stays unchanged, and
// a scalar may be a vector of one element. To transpose a matrix, LoadWeights reads it into host
// memory.
func LoadWeights(ctx context.Context, model any, source Source, opts ...LoadOption) (LoadReport, error) {
	if err := check.Context("nn: LoadWeights", ctx); err != nil {
		return LoadReport{}, err
	}
	if check.Nil(source) {
		return LoadReport{}, fmt.Errorf("nn: LoadWeights: %w: the source is nil", autograd.ErrInvalid)
	}
	state, err := StateDict(model)
	if err != nil {
		return LoadReport{}, err
	}
	report, err := loadWeights(ctx, state, source, opts)
	if err != nil {
		return report, fmt.Errorf("nn: LoadWeights: %w", err)
	}
	return report, NameModules(model)
}

func loadWeights(ctx context.Context, state []NamedTensor, source Source, opts []LoadOption) (LoadReport, error) {
	l := loading{source: source, options: loadOptions{rename: keep, transpose: never}}
	for _, opt := range opts {
		if opt != nil {
			opt(&l.options)
		}
	}
	if l.options.rename == nil || l.options.transpose == nil {
		return LoadReport{}, fmt.Errorf("%w: the function of Rename or Transpose is nil", autograd.ErrInvalid)
	}
	err := l.load(ctx, state)
	return l.report, err
}

func keep(name string) string { return name }

func never(string) bool { return false }
