package nn

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/autograd/internal/weights"
	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/tensor"
)

// loading is a call of LoadWeights.
type loading struct {
	source  Source
	options loadOptions
	infos   map[string]safetensors.Info // of the source's tensors, by their names in the model
	report  LoadReport
}

func (l *loading) load(ctx context.Context, state []NamedTensor) error {
	err := l.match(state)
	if err == nil {
		err = l.tie(ctx)
	}
	if err != nil {
		l.report.Loaded = nil
		return err
	}
	for i, w := range l.report.Loaded {
		if w.TiedTo != "" {
			continue
		}
		r, err := l.reader(ctx, w)
		if err == nil {
			err = tensor.ReadBytes(ctx, w.tensor, r)
		}
		if err != nil {
			l.report.Loaded = l.report.Loaded[:i]
			return fmt.Errorf("%q: %w", w.From, err)
		}
	}
	return nil
}

// tie finds parameters with several names in the source, and returns an error if their numbers
// differ.
func (l *loading) tie(ctx context.Context) error {
	first := map[*tensor.Tensor]LoadedWeight{}
	for i, w := range l.report.Loaded {
		if other, again := first[w.tensor]; again {
			if err := l.same(ctx, other, w); err != nil {
				return err
			}
			l.report.Loaded[i].TiedTo = other.Name
		} else {
			first[w.tensor] = w
		}
	}
	return nil
}

// match compares the model's names with the source's, and makes the report.
func (l *loading) match(state []NamedTensor) error {
	l.infos = map[string]safetensors.Info{}
	known := map[string]bool{}
	for _, t := range state {
		known[t.Name] = true
	}
	all := l.source.Tensors()
	for _, info := range all {
		name := l.options.rename(info.Name)
		other, again := l.infos[name]
		switch {
		case name == "":
			l.report.LeftOut = append(l.report.LeftOut, info.Name)
		case !known[name]:
			l.report.Unexpected = append(l.report.Unexpected, info.Name)
		case again:
			return fmt.Errorf("%w: %q and %q of the source are both %q of the model", autograd.ErrInvalid, other.Name, info.Name, name)
		default:
			l.infos[name] = info
		}
	}
	supplied := map[*tensor.Tensor]bool{} // under at least one of its names
	for _, t := range state {
		if _, ok := l.infos[t.Name]; ok {
			supplied[t.Tensor] = true
		}
	}
	for _, t := range state {
		info, ok := l.infos[t.Name]
		if !ok {
			if !supplied[t.Tensor] && !countsBatches(t) {
				l.report.Missing = append(l.report.Missing, t.Name)
			}
			continue
		}
		w := LoadedWeight{Name: t.Name, From: info.Name, Dtype: info.Dtype, Shape: info.Shape, Into: t.Dtype(), Transposed: l.options.transpose(info.Name), want: t.Shape(), tensor: t.Tensor}
		if w.fits(info) {
			l.report.Loaded = append(l.report.Loaded, w)
		} else {
			l.report.Mismatched = append(l.report.Mismatched, w)
		}
	}
	return l.report.check(l.options.partial, len(state), len(all))
}

// countsBatches reports whether t is the number of batches of a batch norm, which files before
// PyTorch 0.4.1 lack.
func countsBatches(t NamedTensor) bool {
	return t.Name[strings.LastIndexByte(t.Name, '.')+1:] == batchesName && t.Dtype() == tensor.Int64 && t.Rank() == 0
}

// reader returns the bytes of w in the model's dtype and shape.
func (l *loading) reader(ctx context.Context, w LoadedWeight) (io.Reader, error) {
	info := l.infos[w.Name]
	own, _ := info.TensorDtype() // there is one: it fits
	r, err := l.source.Reader(info.Name)
	switch {
	case err != nil:
		return nil, err
	case check.Nil(r):
		return nil, fmt.Errorf("%w: the source's reader is nil", autograd.ErrInvalid)
	}
	if w.Transposed {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		data := make([]byte, w.tensor.Elements()*own.Size())
		if _, err := io.ReadFull(r, data); err != nil {
			return nil, err
		}
		rows, cols := info.Shape[0], info.Shape[1]
		r = weights.Gather(data, own.Size(), []int{cols, rows}, []int{1, cols})
	}
	return weights.Convert(r, info.Dtype, own, w.Into), nil
}

// same returns an error unless two names of one parameter have equal numbers in the source.
func (l *loading) same(ctx context.Context, a, b LoadedWeight) error {
	x, err := l.reader(ctx, a)
	if err != nil {
		return fmt.Errorf("%q: %w", a.From, err)
	}
	y, err := l.reader(ctx, b)
	if err != nil {
		return fmt.Errorf("%q: %w", b.From, err)
	}
	const piece = 1 << 20 // a multiple of each dtype's size
	left := a.tensor.Bytes()
	p, q := make([]byte, min(piece, left)), make([]byte, min(piece, left))
	for ; left > 0; left -= int64(len(p)) {
		p, q = p[:min(int64(len(p)), left)], q[:min(int64(len(p)), left)]
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := io.ReadFull(x, p); err != nil {
			return fmt.Errorf("%q: %w", a.From, err)
		}
		if _, err := io.ReadFull(y, q); err != nil {
			return fmt.Errorf("%q: %w", b.From, err)
		}
		if !bytes.Equal(p, q) {
			return fmt.Errorf("%w: %q and %q of the source have different numbers, and are one parameter of the model: leave one out with nn.Rename",
				safetensors.ErrState, a.From, b.From)
		}
	}
	return nil
}
