package recording

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/cistern-ml/cistern/internal/budget"
)

// maxWindow bounds the memory that zstd may use for a file, in bytes.
const maxWindow = 32 << 20

// Read reads a recording of any form. name is used in errors and results. A snapshot of several
// devices returns a recording for each device that has entries. All of them share the budget of the
// file.
func Read(r io.Reader, name string, o Options) ([]*Recording, error) {
	b := budget.New(o.Limits)
	list, err := read(r, o, b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, explain(err))
	}
	b.Divide(len(list))
	for i, rec := range list {
		rec.Name, rec.Budget = name, b
		if len(list) > 1 {
			rec.Name = fmt.Sprintf("%s[%d]", name, i)
		}
	}
	return list, nil
}

// Open returns the bytes of a file, decompressed if it is compressed with gzip or zstd. Reading
// them is charged to a budget. The caller calls done after the last read, also if err is not nil.
func Open(r io.Reader, b *budget.Budget) (in *bufio.Reader, done func(), err error) {
	raw, done := &source{Reader: r}, func() {}
	buffered := bufio.NewReader(raw)
	switch magic, _ := buffered.Peek(4); {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, done, err
		}
		r = z
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		if err := b.Memory(2 * maxWindow); err != nil {
			return nil, done, err
		}
		z, err := zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, done, err
		}
		r, done = z, z.Close
	default:
		r = buffered
	}
	return bufio.NewReaderSize(&plain{Reader: r, of: raw, budget: b}, 64<<10), done, nil
}

func read(r io.Reader, o Options, b *budget.Budget) ([]*Recording, error) {
	in, done, err := Open(r, b)
	defer done()
	if err != nil {
		return nil, err
	}
	first, err := in.Peek(1)
	if err != nil {
		return nil, err
	}
	switch first[0] {
	case '{', '[':
		if isDump(in) {
			return readDump(in, o, b)
		}
		rec, err := readLines(&lineReader{in: in, budget: b}, o)
		return []*Recording{rec}, err
	case 0x80:
		return readPickle(in, o, b)
	}
	return nil, fmt.Errorf("the file begins with %#x: it is neither JSON lines nor a pickle of protocol 2 or later", first[0])
}

// explain rewords errors of package io.
func explain(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the file is truncated: %w", err)
	}
	return err
}
