package nn

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cistern-ml/cistern/autograd/internal/weights"
	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/tensor"
)

// LoadReport lists the tensors that [LoadWeights] has loaded, and those that do not match.
type LoadReport struct {
	Loaded     []LoadedWeight // in the model's order
	Missing    []string       // names in the model of tensors that the source lacks
	Unexpected []string       // names in the source of tensors that the model lacks
	LeftOut    []string       // names in the source for which Rename returned ""
	Mismatched []LoadedWeight // tensors of another shape, or of a dtype that is not converted
}

// LoadedWeight is a tensor of the source and the model's tensor of that name.
type LoadedWeight struct {
	Name       string       // in the model
	From       string       // in the source
	Dtype      string       // in the source, such as "F32"
	Shape      tensor.Shape // in the source
	Into       tensor.Dtype // in the model
	Transposed bool
	TiedTo     string // the name under which the same parameter was loaded; "": under this one

	want   tensor.Shape
	tensor *tensor.Tensor
}

// fits reports whether the source's tensor can be loaded into the model's.
func (w LoadedWeight) fits(info safetensors.Info) bool {
	own, err := info.TensorDtype()
	if err != nil || !weights.Converts(info.Dtype, own, w.Into) {
		return false
	}
	if w.Transposed {
		return len(w.Shape) == 2 && slices.Equal(w.want, []int{w.Shape[1], w.Shape[0]})
	}
	return slices.Equal(w.Shape, w.want) || len(w.want) == 0 && slices.Equal(w.Shape, []int{1})
}

// String returns a line, such as "0.weight: F16 (3, 2) of "h.0.w", transposed, as float32 (2, 3)".
func (w LoadedWeight) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s %v", w.Name, w.Dtype, w.Shape)
	if w.From != w.Name {
		fmt.Fprintf(&b, " of %q", w.From)
	}
	if w.Transposed {
		b.WriteString(", transposed")
	}
	if w.TiedTo != "" {
		fmt.Fprintf(&b, ", the same parameter as %s", w.TiedTo)
	}
	fmt.Fprintf(&b, ", as %v %v", w.Into, w.want)
	return b.String()
}

// String lists all tensors, one per line.
func (r LoadReport) String() string {
	var b strings.Builder
	section(&b, "loaded", r.Loaded)
	section(&b, "missing in the source", r.Missing)
	section(&b, "unexpected in the source", r.Unexpected)
	section(&b, "left out", r.LeftOut)
	section(&b, "of another shape or dtype", r.Mismatched)
	return b.String()
}

func section[T any](b *strings.Builder, title string, all []T) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(b, "%s: %d\n", title, len(all))
	for _, v := range all {
		fmt.Fprintf(b, "  %v\n", v)
	}
}

// check returns an error if a tensor is not loaded or, if partial is true, if no tensor is.
func (r LoadReport) check(partial bool, model, source int) error {
	if partial && (len(r.Loaded) > 0 || model == 0) {
		return nil
	}
	var problems []string
	if len(r.Missing) > 0 {
		problems = append(problems, fmt.Sprintf("missing %d of the model's %d names: %s", len(r.Missing), model, few(r.Missing)))
	}
	if len(r.Unexpected) > 0 {
		problems = append(problems, fmt.Sprintf("unexpected %d of the source's %d names: %s", len(r.Unexpected), source, few(r.Unexpected)))
	}
	if n := len(r.Mismatched); n > 0 {
		var lines []string
		for _, w := range r.Mismatched[:min(n, most)] {
			line := w.String()
			if w.Transposed = !w.Transposed; w.fits(safetensors.Info{Dtype: w.Dtype}) {
				line += " (see nn.Transpose)"
			}
			lines = append(lines, line)
		}
		problems = append(problems, fmt.Sprintf("%d of another shape or dtype: %s%s", n, strings.Join(lines, "; "), others(n)))
	}
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", safetensors.ErrState, strings.Join(problems, "; "))
}

// most is the number of names of a kind that an error lists.
const most = 5

func few(names []string) string {
	quoted := make([]string, min(len(names), most))
	for i := range quoted {
		quoted[i] = fmt.Sprintf("%q", names[i])
	}
	return strings.Join(quoted, ", ") + others(len(names))
}

// others returns a text with the number of names that are not listed.
func others(n int) string {
	if n <= most {
		return ""
	}
	return fmt.Sprintf(" and %d more", n-most)
}
