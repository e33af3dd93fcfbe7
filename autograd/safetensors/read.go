package safetensors

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// Limits of headers.
const (
	// DefaultHeader is the greatest header, in bytes, that is read without [MaxHeader].
	DefaultHeader = 16 << 20
	// GreatestHeader is the greatest one of the format.
	GreatestHeader = 100_000_000
)

// Option configures how a file is opened.
type Option func(*options)

type options struct{ maxHeader int64 }

// MaxHeader is the greatest header, in bytes, that is read: at most [GreatestHeader].
func MaxHeader(bytes int64) Option {
	return func(o *options) { o.maxHeader = min(bytes, GreatestHeader) }
}

// File is an open file. Its methods may be called from several goroutines.
type File struct {
	r      io.ReaderAt
	close  func() error
	from   int64 // of the data
	header *header
	byName map[string]int
}

// Open opens a file and checks its header. An error about its contents wraps [ErrFormat].
func Open(path string, opts ...Option) (*File, error) {
	s, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	if !s.Mode().IsRegular() { // opening a pipe would wait for a writer
		return nil, fmt.Errorf("safetensors: %s: %w", path, formatError("it is no regular file"))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	s, err = f.Stat()
	var file *File
	if err == nil {
		file, err = New(f, s.Size(), opts...)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("safetensors: %s: %w", path, err), f.Close())
	}
	file.close = f.Close
	return file, nil
}

// New is Open for what is not in a file of the system's: r has size bytes.
func New(r io.ReaderAt, size int64, opts ...Option) (*File, error) {
	o := options{maxHeader: DefaultHeader}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	if r == nil {
		return nil, fmt.Errorf("safetensors: %w: the reader is nil", ErrInvalid)
	}
	var length [8]byte
	if size < int64(len(length)) {
		return nil, formatError("it has %d bytes", size)
	}
	if _, err := io.ReadFull(io.NewSectionReader(r, 0, size), length[:]); err != nil {
		return nil, fmt.Errorf("reading the header: %w", err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	switch {
	case n > math.MaxInt64 || int64(n) > size-8:
		return nil, formatError("its header has %d bytes, and the file %d: was it cut off?", n, size)
	case int64(n) > o.maxHeader:
		return nil, formatError("its header has %d bytes, more than the limit of %d; see MaxHeader", n, o.maxHeader)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(io.NewSectionReader(r, 8, int64(n)), text); err != nil {
		return nil, fmt.Errorf("reading the header: %w", err)
	}
	h, err := parse(text, size-8-int64(n))
	if err != nil {
		return nil, err
	}
	f := &File{r: r, from: 8 + int64(n), header: h, byName: make(map[string]int, len(h.tensors))}
	for i, t := range h.tensors {
		f.byName[t.Name] = i
	}
	return f, nil
}

// Close closes the file.
func (f *File) Close() error {
	if f == nil || f.close == nil {
		return nil
	}
	return f.close()
}

// Tensors are what the file has, in the order of their data. The slice is the caller's, but not the shapes.
func (f *File) Tensors() []Info { return slices.Clone(f.header.tensors) }

// Metadata is what the file's writer said beside.
func (f *File) Metadata() map[string]string { return maps.Clone(f.header.metadata) }

// Info is what the file says of a tensor, and whether it has one of that name.
func (f *File) Info(name string) (Info, bool) {
	i, ok := f.byName[name]
	if !ok {
		return Info{}, false
	}
	return f.header.tensors[i], true
}

// Reader reads the bytes of a tensor: its elements, row-major and little-endian.
func (f *File) Reader(name string) (*io.SectionReader, error) {
	t, ok := f.Info(name)
	if !ok {
		return nil, fmt.Errorf("safetensors: %q: %w", name, ErrMissing)
	}
	return io.NewSectionReader(f.r, f.from+t.Begin, t.Bytes), nil
}

// TensorDtype is the dtype of a tensor that has what t has. Booleans are uint8. What no tensor has
// is an error that wraps [tensor.ErrDtype].
func (t Info) TensorDtype() (tensor.Dtype, error) {
	if d, ok := dtypes[t.Dtype]; ok {
		return d, nil
	}
	return 0, fmt.Errorf("safetensors: %q: %w: there are no tensors of %s", t.Name, tensor.ErrDtype, t.Dtype)
}

// LoadsInto reports whether [File.LoadInto] takes a tensor of dtype d for what t has: of its
// TensorDtype, and float32 for numbers of 16 bits, which it has exactly. Nothing is rounded while
// it is read.
func (t Info) LoadsInto(d tensor.Dtype) bool {
	own, err := t.TensorDtype()
	return err == nil && (d == own || t.widens(d))
}

// widens reports whether t's numbers of 16 bits become d's.
func (t Info) widens(d tensor.Dtype) bool { return halves[t.Dtype] != nil && d == tensor.Float32 }

// Load makes a tensor of what the file has under a name, of its [Info.TensorDtype]. The caller releases it.
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

// LoadInto overwrites a tensor with what the file has under a name. It has its shape, and a dtype
// that it may be loaded into ([Info.LoadsInto]). The last copy is queued on the tensor's stream
// when LoadInto returns. After an error a part of the tensor may be overwritten.
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
	case !info.LoadsInto(t.Dtype()):
		return fmt.Errorf("safetensors: %q: %w: the file has %s, and the tensor is %v: want %v, see tensor.Runtime.Convert", name, tensor.ErrDtype, info.Dtype, t.Dtype(), dtype)
	case !slices.Equal(info.Shape, t.Shape()):
		return fmt.Errorf("safetensors: %q: %w: the file has %v, and the tensor is %v", name, tensor.ErrShape, tensor.Shape(info.Shape), t.Shape())
	}
	var from io.Reader = r
	if info.widens(t.Dtype()) {
		from = &widened{r: r, wide: halves[info.Dtype]}
	}
	if err := tensor.ReadBytes(ctx, t, from); err != nil {
		return fmt.Errorf("safetensors: %q: %w", name, err)
	}
	return nil
}
