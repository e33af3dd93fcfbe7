package torchfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/cistern-ml/cistern/autograd/safetensors"
)

// ErrFormat is the class of errors about files that are not a state dict of torch.save in the zip
// format, for errors.Is.
var ErrFormat = errors.New("not a state dict of torch.save")

func formatError(what string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(what, args...))
}

// Limits of the parts of a file that are held in memory.
const (
	maxDirectory = 16 << 20 // bytes of the zip archive's directory
	maxPickle    = 16 << 20 // bytes
)

// File is an open file. Its methods may be called from several goroutines.
type File struct {
	tensors   []safetensors.Info
	views     map[string]*view
	bigEndian bool // byte order of the file's numbers
	close     func() error
}

// Open opens a file and reads its pickle. An error about the contents wraps [ErrFormat].
func Open(path string) (*File, error) {
	f, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("torchfile: %w", err)
	}
	return f, nil
}

func open(path string) (*File, error) {
	s, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !s.Mode().IsRegular() { // opening a pipe would wait for a writer
		return nil, fmt.Errorf("%s: %w", path, formatError("it is not a regular file"))
	}
	r, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	f, err := read(r, s.Size())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), r.Close())
	}
	f.close = sync.OnceValue(r.Close)
	return f, nil
}

// read reads all of a file except the elements.
func read(r io.ReaderAt, size int64) (*File, error) {
	a, err := openArchive(r, size)
	if err != nil {
		return nil, err
	}
	value, err := a.unpickle()
	if err != nil {
		return nil, err
	}
	names, views, err := stateDict(value)
	if err != nil {
		return nil, err
	}
	f := &File{views: views, bigEndian: a.bigEndian}
	for _, name := range names {
		v := views[name]
		f.tensors = append(f.tensors, safetensors.Info{Name: name, Dtype: v.from.dtype, Shape: v.shape, Bytes: v.bytes()})
	}
	return f, nil
}

// Close closes the file. It is idempotent.
func (f *File) Close() error {
	if f == nil || f.close == nil {
		return nil
	}
	return f.close()
}

// Tensors returns the tensors of the state dict in its order, with the names of dtypes in
// safetensors. Info.Begin is 0. The caller owns the slice, but not the shapes.
func (f *File) Tensors() []safetensors.Info { return slices.Clone(f.tensors) }

// Reader reads the elements of a tensor, row-major and little-endian.
func (f *File) Reader(name string) (io.Reader, error) {
	v, ok := f.views[name]
	if !ok {
		return nil, fmt.Errorf("torchfile: %q: %w", name, safetensors.ErrMissing)
	}
	r, err := v.reader(f.bigEndian)
	if err != nil {
		return nil, fmt.Errorf("torchfile: %q: %w", name, err)
	}
	return r, nil
}
