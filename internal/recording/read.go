package recording

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

// maxWindow is the most memory that zstd may need for a file, in bytes.
const maxWindow = 128 << 20

// ReadFile reads a file. A snapshot of several devices gives a recording for each that has entries.
func ReadFile(path string, limits Limits) ([]*Recording, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("memreplay: %w", err)
	}
	defer f.Close()
	return Read(f, filepath.Base(path), limits)
}

// Read reads a recording of any form. name is for errors and results.
func Read(r io.Reader, name string, limits Limits) ([]*Recording, error) {
	list, err := read(r, limits.withDefaults())
	if err != nil {
		return nil, fmt.Errorf("memreplay: %s: %w", name, explain(err))
	}
	for i, rec := range list {
		rec.Name = name
		if len(list) > 1 {
			rec.Name = fmt.Sprintf("%s[%d]", name, i)
		}
	}
	return list, nil
}

func read(r io.Reader, limits Limits) ([]*Recording, error) {
	plain := bufio.NewReader(r)
	switch magic, _ := plain.Peek(4); {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(plain)
		if err != nil {
			return nil, err
		}
		r = z
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(plain, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxWindow))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		r = z
	default:
		r = plain
	}
	in := bufio.NewReaderSize(newBounded(r, limits.Bytes), 64<<10)
	first, err := in.Peek(1)
	if err != nil {
		return nil, err
	}
	switch first[0] {
	case '{', '[':
		if isDump(in) {
			return readDump(in, limits)
		}
		rec, err := readLines(in, limits)
		return []*Recording{rec}, err
	case 0x80:
		return readPickle(in, limits)
	}
	return nil, fmt.Errorf("the file begins with %#x: it is neither JSON lines nor a pickle of protocol 2 or later", first[0])
}

// explain says what io's errors mean here.
func explain(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the file is truncated: %w", err)
	}
	return err
}
