package digits

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/dustin/go-humanize"
)

// idxKind is what a file in the idx format holds: unsigned bytes, so many for each record.
type idxKind struct {
	name   string
	magic  uint32
	record []int // the dimensions of one record
}

var (
	imageFile = idxKind{"images", 0x0803, []int{Side, Side}}
	labelFile = idxKind{"labels", 0x0801, nil}
)

// maxImages limits the records of a file, so that a small compressed file can make the reader
// allocate at most 196 MiB of pictures. MNIST has 60,000; the largest part of EMNIST that fits its
// classes has 240,000.
const maxImages = 1 << 18

// readIDX reads a file in the idx format, with or without gzip. The file must have n records of the
// kind and nothing else. GoMNIST's reader trusts the header, and ignores data after the records.
func readIDX(path string, kind idxKind, limit int) (n int, data []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, nil, fmt.Errorf("mnist: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return 0, nil, fmt.Errorf("mnist: %s is not a file: want the data set's %s", path, kind.name)
	}
	n, data, err = decodeIDX(f, kind, limit)
	if err != nil {
		return 0, nil, fmt.Errorf("mnist: %s: %w", path, err)
	}
	return n, data, nil
}

func decodeIDX(file io.Reader, kind idxKind, limit int) (n int, data []byte, err error) {
	in := bufio.NewReaderSize(file, 1<<16)
	var r io.Reader = in
	if start, _ := in.Peek(2); bytes.Equal(start, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return 0, nil, damaged(err)
		}
		defer z.Close()
		r = z
	}
	records, record, err := readHeader(r, kind)
	if err != nil {
		return 0, nil, err
	}
	if records == 0 || records > int64(limit) {
		return 0, nil, fmt.Errorf("the header says %s records: want 1 to %s", humanize.Comma(records), humanize.Comma(int64(limit)))
	}
	n = int(records)
	want := n * record
	data, err = readUpTo(r, want)
	if err != nil {
		return 0, nil, damaged(err)
	}
	if len(data) < want {
		return 0, nil, fmt.Errorf("it ends after %d bytes of %s: want %d (%d records of %d): the file is truncated",
			len(data), kind.name, want, n, record)
	}
	var more [1]byte
	switch _, err := io.ReadFull(r, more[:]); {
	case err == nil:
		return 0, nil, fmt.Errorf("more follows the %d records that the header says: want the end of the file", n)
	case !errors.Is(err, io.EOF):
		return 0, nil, damaged(err)
	}
	return n, data, nil
}

// readHeader reads the magic number, the number of records and the dimensions of one.
func readHeader(r io.Reader, kind idxKind) (n int64, record int, err error) {
	head := make([]byte, 4*(2+len(kind.record)))
	got, err := io.ReadFull(r, head)
	magic := binary.BigEndian.Uint32(head)
	switch {
	case got >= 4 && magic != kind.magic:
		return 0, 0, fmt.Errorf("it starts with %#08x%s: want %#08x, the start of a file of %s", magic, guess(head), kind.magic, kind.name)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return 0, 0, fmt.Errorf("it ends in the header, after %d bytes: want %d: the file is truncated", got, len(head))
	case err != nil:
		return 0, 0, damaged(err)
	}
	record = 1
	for i, want := range kind.record {
		if dim := binary.BigEndian.Uint32(head[8+4*i:]); dim != uint32(want) {
			return 0, 0, fmt.Errorf("dimension %d of a record is %d: want %d", i, dim, want)
		}
		record *= want
	}
	return int64(binary.BigEndian.Uint32(head[4:])), record, nil
}

// guess names a likely format of a file with the wrong start.
func guess(head []byte) string {
	switch magic := binary.BigEndian.Uint32(head); {
	case magic == imageFile.magic:
		return ", a file of images"
	case magic == labelFile.magic:
		return ", a file of labels"
	case head[0] == '<':
		return fmt.Sprintf(" (%q), perhaps a web page", head[:4])
	case bytes.HasPrefix(head, []byte("PK")):
		return ", a zip archive"
	}
	return ""
}

// readUpTo reads want bytes, or fewer at the end of r. Its buffer grows with the bytes that arrive,
// because the header may be wrong.
func readUpTo(r io.Reader, want int) ([]byte, error) {
	const step = 8 << 20
	data := make([]byte, 0, min(want, step))
	for len(data) < want {
		if len(data) == cap(data) {
			grown := make([]byte, len(data), min(want, 4*cap(data)))
			copy(grown, data)
			data = grown
		}
		n, err := r.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if err == io.EOF { // a truncated gzip stream returns another error
			return data, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return data, nil
}

func damaged(err error) error {
	return fmt.Errorf("%w: the file is damaged: fetch it again", err)
}
