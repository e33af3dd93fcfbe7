package safetensors

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// File is an open file, or the open shards of a model. Its methods may be called from several
// goroutines.
type File struct {
	tensors  []Info
	byName   map[string]int // indices into tensors
	parts    []*part        // of the tensors at the same indices
	metadata map[string]string
	close    func() error // nil: there is nothing to close
}

// part is a file with a header, which may be a shard.
type part struct {
	r      io.ReaderAt
	from   int64 // of the data
	header *header
}

// file returns a File of one part.
func (p *part) file() *File {
	f := &File{byName: map[string]int{}, metadata: p.header.metadata}
	for _, t := range p.header.tensors {
		f.add(t, p)
	}
	return f
}

func (f *File) add(t Info, p *part) {
	f.byName[t.Name] = len(f.tensors)
	f.tensors, f.parts = append(f.tensors, t), append(f.parts, p)
}

// Close closes the file, or all shards. It is idempotent.
func (f *File) Close() error {
	if f == nil || f.close == nil {
		return nil
	}
	return f.close()
}

// Tensors returns the tensors of the file, in the order of their data; those of shards in the order
// of the shards' names. The caller owns the slice, but not the shapes.
func (f *File) Tensors() []Info { return slices.Clone(f.tensors) }

// Metadata returns the texts that the file's writer has added. Shards have none.
func (f *File) Metadata() map[string]string { return maps.Clone(f.metadata) }

// Info returns the description of a tensor. ok is false if the file has none of that name.
func (f *File) Info(name string) (Info, bool) {
	i, ok := f.byName[name]
	if !ok {
		return Info{}, false
	}
	return f.tensors[i], true
}

// Reader reads the bytes of a tensor: its elements, row-major and little-endian.
func (f *File) Reader(name string) (io.Reader, error) {
	i, ok := f.byName[name]
	if !ok {
		return nil, fmt.Errorf("safetensors: %q: %w", name, ErrMissing)
	}
	t, p := f.tensors[i], f.parts[i]
	return io.NewSectionReader(p.r, p.from+t.Begin, t.Bytes), nil
}

// TensorDtype returns the dtype of a tensor that can load t. Booleans are uint8. A dtype that no
// tensor has is an error that wraps [tensor.ErrDtype].
func (t Info) TensorDtype() (tensor.Dtype, error) {
	if d, ok := dtypes[t.Dtype]; ok {
		return d, nil
	}
	return 0, fmt.Errorf("safetensors: %q: %w: tensors can't be %s", t.Name, tensor.ErrDtype, t.Dtype)
}

// Load makes a tensor of the file's tensor of that name, with its [Info.TensorDtype]. The caller
// releases it.
func (f *File) Load(ctx context.Context, rt *tensor.Runtime, name string) (*tensor.Tensor, error) {
	info, ok := f.Info(name)
	if !ok {
		return nil, fmt.Errorf("safetensors: %q: %w", name, ErrMissing)
	}
	if rt == nil {
		return nil, fmt.Errorf("safetensors: %q: %w: the runtime is nil", name, ErrInvalid)
	}
	dtype, err := info.TensorDtype()
	if err != nil {
		return nil, err
	}
	t, err := rt.New(ctx, dtype, info.Shape...)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %q: %w", name, err)
	}
	if err := f.LoadInto(ctx, name, t); err != nil {
		return nil, errors.Join(err, t.ReleaseContext(ctx))
	}
	return t, nil
}

// LoadInto overwrites a tensor of the same shape and [Info.TensorDtype] with the file's tensor of
// that name. The last copy is queued on the tensor's stream when LoadInto returns. After an
// error a part of the tensor may be overwritten.
func (f *File) LoadInto(ctx context.Context, name string, t *tensor.Tensor) error {
	r, err := f.Reader(name)
	if err != nil {
		return err
	}
	info, _ := f.Info(name)
	dtype, err := info.TensorDtype()
	switch {
	case err != nil:
		return err
	case t == nil:
		return fmt.Errorf("safetensors: %q: %w: the tensor is nil", name, ErrInvalid)
	case dtype != t.Dtype():
		return fmt.Errorf("safetensors: %q: %w: the file has %s, and the tensor is %v: want %v, see tensor.Runtime.Convert", name, tensor.ErrDtype, info.Dtype, t.Dtype(), dtype)
	case !slices.Equal(info.Shape, t.Shape()):
		return fmt.Errorf("safetensors: %q: %w: the file has %v, and the tensor is %v", name, tensor.ErrShape, tensor.Shape(info.Shape), t.Shape())
	}
	if err := tensor.ReadBytes(ctx, t, r); err != nil {
		return fmt.Errorf("safetensors: %q: %w", name, err)
	}
	return nil
}
