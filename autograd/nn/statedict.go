package nn

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/tensor"
)

// StateDict returns the tensors of a model that are saved: the values of its parameters, and its
// buffers, under PyTorch's names (torch.nn.Module.state_dict). The model owns them. It is a
// [Layer], or a value that [ParametersOf] walks. A parameter with two names is listed under both,
// as in PyTorch.
func StateDict(model any) ([]NamedTensor, error) {
	if model == nil {
		return nil, fmt.Errorf("nn: StateDict: %w: the model is nil", autograd.ErrInvalid)
	}
	params, buffers := ModelState(model)
	all := make([]NamedTensor, 0, len(params)+len(buffers))
	for _, p := range params {
		if err := p.Err(); err != nil {
			return nil, fmt.Errorf("nn: StateDict: parameter %q: %w", p.Name, err)
		}
		all = append(all, NamedTensor{p.Name, p.Value()})
	}
	for _, b := range buffers {
		if b.Tensor.Released() {
			return nil, fmt.Errorf("nn: StateDict: buffer %q: %w", b.Name, tensor.ErrReleased)
		}
		all = append(all, b)
	}
	seen := map[string]bool{}
	for _, t := range all {
		if seen[t.Name] {
			return nil, fmt.Errorf("nn: StateDict: %w: two tensors are named %q", autograd.ErrInvalid, t.Name)
		}
		seen[t.Name] = true
	}
	return all, nil
}

// ModelState returns the parameters and buffers of a model's own methods. If a walk finds these and
// more, ModelState returns those of the walk, which have further names of tied weights, and the
// buffers of a model without a method for them.
func ModelState(model any) (autograd.Parameters, []NamedTensor) {
	params, buffers := parametersOf(model, true), buffersOf(model, true)
	all, tensors := params.params, buffers.buffers
	if layer, ok := model.(parameterized); ok && !check.Nil(model) {
		if own := layer.Parameters(); !containsAll(bare(all), bare(own)) {
			all = own // it has names of its own
		}
		if b, ok := model.(Buffered); ok {
			if own := b.Buffers(); !containsAll(tensors, own) {
				tensors = own
			}
		}
	}
	return append(slices.Clip(all), buffers.params...), tensors // errors, if any
}

// SaveModel writes a model's [StateDict] to a file, which replaces an older one only when it is
// complete; see [safetensors.WriteFile]. PyTorch loads it with
// load_state_dict(safetensors.torch.load_file(path)).
func SaveModel(ctx context.Context, model any, path string) error {
	if err := check.Context("nn: SaveModel", ctx); err != nil {
		return err
	}
	state, err := StateDict(model)
	if err != nil {
		return err
	}
	if err := safetensors.WriteFile(ctx, path, namedFor(state), map[string]string{"format": "pt"}); err != nil {
		return fmt.Errorf("nn: SaveModel: %w", err)
	}
	return nil
}

func namedFor(state []NamedTensor) []safetensors.Named {
	all := make([]safetensors.Named, len(state))
	for i, t := range state {
		all[i] = safetensors.Named(t)
	}
	return all
}

// LoadModel loads a model from a file of safetensors, or from the index of several, as
// [LoadWeights] does without options.
func LoadModel(ctx context.Context, model any, path string) error {
	if err := check.Context("nn: LoadModel", ctx); err != nil {
		return err
	}
	state, err := StateDict(model)
	if err != nil {
		return err
	}
	f, err := safetensors.Open(path)
	if err != nil {
		return fmt.Errorf("nn: LoadModel: %w", err)
	}
	_, err = loadWeights(ctx, state, f, nil)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("nn: LoadModel: %s: %w", path, err)
	}
	return NameModules(model)
}
