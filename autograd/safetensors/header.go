package safetensors

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/cistern-ml/cistern/device"
)

// Classes of errors, for errors.Is.
var (
	// ErrFormat: the file is not in the format, is cut off, or is larger than a limit.
	ErrFormat = errors.New("not a safetensors file")
	// ErrMissing: the file has no tensor of that name.
	ErrMissing = errors.New("no such tensor")
	// ErrInvalid: an argument is wrong; it is [device.ErrInvalid].
	ErrInvalid = device.ErrInvalid
)

func formatError(what string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(what, args...))
}

// Info describes a tensor of a file.
type Info struct {
	Name  string
	Dtype string // such as "F32"
	Shape []int
	Begin int64 // offset in the file's data, in bytes
	Bytes int64
}

// header is the part of a file before the data.
type header struct {
	metadata map[string]string
	tensors  []Info // in the order of their data
}

const metadataKey = "__metadata__"

// maxDims is more dimensions than any tensor has. It bounds a header in memory to a few times its
// text.
const maxDims = 64

// parse reads the header of data bytes of data. It allocates at most a few times the header's
// length.
func parse(text []byte, data int64) (*header, error) {
	if len(text) == 0 || text[0] != '{' || !utf8.Valid(text) {
		return nil, formatError("the header is not a JSON object")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	h := &header{}
	seen := map[string]bool{}
	err := object(d, func(key string) error {
		if seen[key] {
			return formatError("%q appears twice", key)
		}
		seen[key] = true
		if key == metadataKey {
			return h.readMetadata(d)
		}
		return h.readInfo(d, key)
	})
	if err == nil {
		if _, end := d.Token(); end != io.EOF {
			err = formatError("the header continues after its object")
		}
	}
	if err != nil {
		if !errors.Is(err, ErrFormat) {
			err = formatError("the header: %v", err)
		}
		return nil, err
	}
	return h, h.fill(data)
}

// object calls f for each key of an object, to read its value.
func object(d *json.Decoder, f func(key string) error) error {
	switch t, err := d.Token(); {
	case err != nil:
		return err
	case t != json.Delim('{'):
		return formatError("want an object instead of %v", t)
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		key, _ := t.(string) // the decoder accepts only strings as keys
		if err := f(key); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

func (h *header) readMetadata(d *json.Decoder) error {
	h.metadata = map[string]string{}
	return object(d, func(key string) error {
		if _, ok := h.metadata[key]; ok {
			return formatError("%q appears twice in the metadata", key)
		}
		text, err := word(d, "metadata", key)
		h.metadata[key] = text
		return err
	})
}

// word reads a string: the metadata, the dtype or the shard of a name.
func word(d *json.Decoder, of, name string) (string, error) {
	t, err := d.Token()
	text, ok := t.(string)
	if err == nil && !ok {
		err = formatError("the %s of %q is not a string", of, name)
	}
	return text, err
}

func (h *header) readInfo(d *json.Decoder, name string) error {
	info := Info{Name: name, Shape: []int{}}
	seen := map[string]bool{}
	var offsets []int64
	err := object(d, func(key string) error {
		if seen[key] {
			return formatError("%q of tensor %q appears twice", key, name)
		}
		seen[key] = true
		switch key {
		case "dtype":
			var err error
			info.Dtype, err = word(d, "dtype", name)
			return err
		case "shape":
			dims, err := numbers(d, name)
			for _, n := range dims {
				if n > math.MaxInt {
					return formatError("tensor %q has a dimension of %d", name, n)
				}
				info.Shape = append(info.Shape, int(n))
			}
			return err
		case "data_offsets":
			var err error
			offsets, err = numbers(d, name)
			return err
		}
		return formatError("tensor %q has %q, which is none of dtype, shape and data_offsets", name, key)
	})
	if err != nil {
		return err
	}
	if len(seen) != 3 || len(offsets) != 2 {
		return formatError("tensor %q: want dtype, shape and two data_offsets", name)
	}
	size, begin, end := int64(1), offsets[0], offsets[1]
	at := rank(info.Dtype)
	if at >= 0 {
		size = sizes[at].size
	}
	want, ok := bytesOf(info.Shape, size)
	if !ok || end < begin {
		return formatError("tensor %q, %s %v, takes from byte %d to %d: want an end that is not before the beginning, and a shape of at most 2^63-1 bytes", name, info.Dtype, info.Shape, begin, end)
	}
	if at < 0 { // an unknown dtype, of unknown size
		want = end - begin
	}
	if end-begin != want {
		return formatError("tensor %q, %s %v, takes from byte %d to %d, instead of %d bytes", name, info.Dtype, info.Shape, begin, end, want)
	}
	info.Begin, info.Bytes = begin, want
	h.tensors = append(h.tensors, info)
	return nil
}

// numbers reads an array of whole numbers.
func numbers(d *json.Decoder, name string) (all []int64, err error) {
	switch t, err := d.Token(); {
	case err != nil:
		return nil, err
	case t != json.Delim('['):
		return nil, formatError("tensor %q: want an array instead of %v", name, t)
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		text, _ := t.(json.Number)
		n, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil || n < 0 {
			return nil, formatError("tensor %q: %v is not a number of elements or bytes", name, t)
		}
		if all = append(all, n); len(all) > maxDims {
			return nil, formatError("tensor %q has more than %d dimensions", name, maxDims)
		}
	}
	_, err = d.Token()
	return all, err
}

// bytesOf returns the size of a shape in bytes. ok is false if it is negative or overflows.
func bytesOf(shape []int, size int64) (bytes int64, ok bool) {
	bytes = size
	for _, n := range shape {
		if n == 0 {
			return 0, true
		}
	}
	for _, n := range shape {
		if n < 0 || bytes > math.MaxInt64/int64(n) {
			return 0, false
		}
		bytes *= int64(n)
	}
	return bytes, true
}

// fill checks that the tensors fill the data, each byte once.
func (h *header) fill(data int64) error {
	slices.SortStableFunc(h.tensors, func(a, b Info) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.Bytes, b.Bytes))
	})
	at := int64(0)
	for _, t := range h.tensors {
		if t.Begin != at {
			return formatError("tensor %q begins at byte %d of the data: want %d, without holes and overlaps", t.Name, t.Begin, at)
		}
		at += t.Bytes // the end in the header
		if at > data {
			return formatError("tensor %q ends at byte %d, and there are %d bytes of data: was the file cut off?", t.Name, at, data)
		}
	}
	if at != data {
		return formatError("the tensors take %d bytes, and there are %d bytes of data", at, data)
	}
	return nil
}
