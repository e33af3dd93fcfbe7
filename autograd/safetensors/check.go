package safetensors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cistern-ml/cistern/tensor"
)

// ErrState is the error of a file that has other tensors than the program wants.
var ErrState = errors.New("error(s) in loading state_dict")

// fits reports whether a tensor of the file's shape is loaded into t.
func fits(shape []int, t *tensor.Tensor) bool {
	return slices.Equal(shape, t.Shape()) || t.Rank() == 0 && slices.Equal(shape, []int{1})
}

// Check compares tensors that are to be loaded with the file's: names, shapes and dtypes. infos are
// those of the file's that must be among them. If strict is false, either may lack some of the
// other's. All that is wrong is in one error, which wraps [ErrState]. A tensor of several names needs
// one of them.
func (f *File) Check(tensors []Named, infos []Info, strict bool) error {
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
		if !info.LoadsInto(t.Dtype()) || !fits(info.Shape, t.Tensor) {
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
	if len(missing) > 0 && strict {
		problems = append(problems, "missing key(s) in state_dict: "+strings.Join(missing, ", "))
	}
	if len(unexpected) > 0 && strict {
		problems = append(problems, "unexpected key(s) in state_dict: "+strings.Join(unexpected, ", "))
	}
	if problems = append(problems, wrong...); len(problems) > 0 {
		return fmt.Errorf("%w: %s", ErrState, strings.Join(problems, "; "))
	}
	return nil
}

// LoadAll is [File.LoadInto] for those of the tensors that the file has. After an error those before
// the one that failed are loaded.
func (f *File) LoadAll(ctx context.Context, tensors []Named) error {
	for _, t := range tensors {
		info, ok := f.Info(t.Name)
		if !ok {
			continue
		}
		if err := f.loadInto(ctx, info, t.Tensor); err != nil {
			return err
		}
	}
	return nil
}

// loadInto reads a tensor whose shape fits.
func (f *File) loadInto(ctx context.Context, info Info, t *tensor.Tensor) error {
	if len(info.Shape) == t.Rank() {
		return f.LoadInto(ctx, info.Name, t)
	}
	vector, err := t.Runtime().Reshape(tensor.Detached(ctx), t, info.Shape...)
	if err != nil {
		return err
	}
	return errors.Join(f.LoadInto(ctx, info.Name, vector), vector.Release())
}
