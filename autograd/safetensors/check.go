package safetensors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cistern-ml/cistern/tensor"
)

// ErrState is the error of a file whose tensors differ from those of the program.
var ErrState = errors.New("error(s) in loading state_dict")

// Check compares tensors that are to be loaded with the file's: names, shapes and dtypes must be
// the same. infos are those of the file's tensors that must be among them. One error, which wraps
// [ErrState], lists all differences. A tensor with several names needs one of them.
func (f *File) Check(tensors []Named, infos []Info) error {
	known, loaded := map[string]bool{}, map[*tensor.Tensor]bool{}
	for _, t := range tensors {
		known[t.Name] = true
		if _, ok := f.Info(t.Name); ok {
			loaded[t.Tensor] = true
		}
	}
	var missing, unexpected, wrong []string
	for _, t := range tensors {
		info, ok := f.Info(t.Name)
		if !ok {
			if !loaded[t.Tensor] {
				missing = append(missing, fmt.Sprintf("%q", t.Name))
			}
			continue
		}
		if dtype, err := info.TensorDtype(); err != nil || dtype != t.Dtype() || !slices.Equal(info.Shape, t.Shape()) {
			wrong = append(wrong, fmt.Sprintf("size mismatch for %s: the file has %s %v, and the model %v %v",
				t.Name, info.Dtype, tensor.Shape(info.Shape), t.Dtype(), t.Shape()))
		}
	}
	for _, info := range infos {
		if !known[info.Name] {
			unexpected = append(unexpected, fmt.Sprintf("%q", info.Name))
		}
	}
	var problems []string
	if len(missing) > 0 {
		problems = append(problems, "missing key(s) in state_dict: "+strings.Join(missing, ", "))
	}
	if len(unexpected) > 0 {
		problems = append(problems, "unexpected key(s) in state_dict: "+strings.Join(unexpected, ", "))
	}
	if problems = append(problems, wrong...); len(problems) > 0 {
		return fmt.Errorf("%w: %s", ErrState, strings.Join(problems, "; "))
	}
	return nil
}

// LoadAll calls [File.LoadInto] for those of the tensors that the file has. After an error the
// tensors before the failed one are loaded.
func (f *File) LoadAll(ctx context.Context, tensors []Named) error {
	for _, t := range tensors {
		if _, ok := f.Info(t.Name); !ok {
			continue
		}
		if err := f.LoadInto(ctx, t.Name, t.Tensor); err != nil {
			return err
		}
	}
	return nil
}
