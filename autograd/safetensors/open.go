package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
)

// Limits of headers.
const (
	// DefaultHeader is the limit of a header, in bytes, without [MaxHeader].
	DefaultHeader = 16 << 20
	// GreatestHeader is the limit of the format.
	GreatestHeader = 100_000_000
)

// Option configures how a file is opened.
type Option func(*options)

type options struct{ maxHeader int64 }

// MaxHeader sets the limit of a header, in bytes: at most [GreatestHeader].
func MaxHeader(bytes int64) Option {
	return func(o *options) { o.maxHeader = min(bytes, GreatestHeader) }
}

// Open opens a file and checks its header. If path ends in ".json", such as
// model.safetensors.index.json, it is the index of a model, and Open opens all of its shards, which
// are in the same folder. An error about the contents wraps [ErrFormat]. A shard that is missing,
// or lacks a tensor of the index, is an error. Tensors that the index does not list are left out.
func Open(path string, opts ...Option) (*File, error) {
	o := optionsOf(opts)
	if strings.HasSuffix(path, ".json") {
		f, err := openIndex(path, o)
		if err != nil {
			return nil, fmt.Errorf("safetensors: %s: %w", path, err)
		}
		return f, nil
	}
	p, file, err := openPart(path, o)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	f := p.file()
	f.close = sync.OnceValue(file.Close)
	return f, nil
}

// openRegular opens a regular file. It refuses others, because opening a pipe would wait for a
// writer.
func openRegular(path string) (*os.File, int64, error) {
	s, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if !s.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s: %w", path, formatError("it is not a regular file"))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	if s, err = f.Stat(); err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, s.Size(), nil
}

func openPart(path string, o options) (*part, *os.File, error) {
	f, size, err := openRegular(path)
	if err != nil {
		return nil, nil, err
	}
	p, err := newPart(f, size, o)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return p, f, nil
}

// New is Open of a reader of size bytes.
func New(r io.ReaderAt, size int64, opts ...Option) (*File, error) {
	if r == nil {
		return nil, fmt.Errorf("safetensors: %w: the reader is nil", ErrInvalid)
	}
	p, err := newPart(r, size, optionsOf(opts))
	if err != nil {
		return nil, err
	}
	return p.file(), nil
}

func optionsOf(opts []Option) options {
	o := options{maxHeader: DefaultHeader}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return o
}

func newPart(r io.ReaderAt, size int64, o options) (*part, error) {
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
	return &part{r: r, from: 8 + int64(n), header: h}, nil
}
