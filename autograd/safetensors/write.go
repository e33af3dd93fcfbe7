package safetensors

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"unicode/utf8"

	"github.com/cistern-ml/cistern/internal/output"
	"github.com/cistern-ml/cistern/tensor"
)

// Named is a tensor to write.
type Named struct {
	Name string
	*tensor.Tensor
}

// Write writes the tensors to w, in the order of the format's own writers: by dtype, the largest
// elements first, and by name. So the same tensors and metadata give the same bytes. Write waits
// for one tensor after the other, and streams them through pinned memory. The streamed tensors are
// in the same order among them.
func Write(ctx context.Context, w io.Writer, tensors []Named, metadata map[string]string, streamed ...Streamed) error {
	all, text, err := layout(entries(tensors, streamed), metadata)
	if err == nil && (ctx == nil || w == nil) {
		err = fmt.Errorf("%w: the context and the writer must not be nil", ErrInvalid)
	}
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	if _, err := w.Write(text); err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	for _, t := range all {
		if err := t.write(ctx, w); err != nil {
			return fmt.Errorf("safetensors: %q: %w", t.name, err)
		}
	}
	return nil
}

// layout sorts the entries in the order of their data, and makes the header with its length.
func layout(all []entry, metadata map[string]string) (_ []entry, text []byte, err error) {
	for _, t := range all {
		switch {
		case t.err != nil:
			return nil, nil, fmt.Errorf("%q: %w", t.name, t.err)
		case nameOf(t.dtype) == "":
			return nil, nil, fmt.Errorf("%q: %w: the format has no %v", t.name, tensor.ErrDtype, t.dtype)
		case !utf8.ValidString(t.name):
			return nil, nil, fmt.Errorf("%w: the name %q is not UTF-8", ErrInvalid, t.name)
		case t.name == metadataKey:
			return nil, nil, fmt.Errorf("%q: %w: the format reserves that name for metadata", t.name, ErrInvalid)
		}
	}
	slices.SortStableFunc(all, func(a, b entry) int { return before(a.dtype, a.name, b.dtype, b.name) })
	h := headerWriter{first: true}
	h.WriteByte('{')
	if len(metadata) > 0 {
		h.entry(metadataKey, metadata)
	}
	at, seen := int64(0), map[string]bool{}
	for _, t := range all {
		if seen[t.name] {
			return nil, nil, fmt.Errorf("%w: two tensors are named %q", ErrInvalid, t.name)
		}
		seen[t.name] = true
		if t.bytes > math.MaxInt64-at {
			return nil, nil, fmt.Errorf("%w: more bytes than a file can have", ErrInvalid)
		}
		shape := t.shape
		if shape == nil {
			shape = tensor.Shape{}
		}
		h.entry(t.name, struct {
			Dtype   string   `json:"dtype"`
			Shape   []int    `json:"shape"`
			Offsets [2]int64 `json:"data_offsets"`
		}{nameOf(t.dtype), shape, [2]int64{at, at + t.bytes}})
		at += t.bytes
	}
	h.WriteByte('}')
	for h.Len()%8 != 0 { // the data is aligned
		h.WriteByte(' ')
	}
	if h.err == nil && h.Len() > GreatestHeader {
		h.err = fmt.Errorf("%w: a header of %d bytes: the format has at most %d", ErrInvalid, h.Len(), GreatestHeader)
	}
	return all, append(binary.LittleEndian.AppendUint64(nil, uint64(h.Len())), h.Bytes()...), h.err
}

// headerWriter writes an object whose keys have an order. Its first error sticks.
type headerWriter struct {
	bytes.Buffer
	first bool
	err   error
}

func (h *headerWriter) entry(key string, value any) {
	if !h.first {
		h.WriteByte(',')
	}
	h.first = false
	h.json(key)
	h.WriteByte(':')
	h.json(value)
}

func (h *headerWriter) json(v any) {
	e := json.NewEncoder(&h.Buffer)
	e.SetEscapeHTML(false)
	h.err = errors.Join(h.err, e.Encode(v))
	h.Truncate(h.Len() - 1) // the encoder's line feed
}

// WriteFile writes a file at path, and replaces an existing one atomically: if the program or the
// machine stops, path has the complete old file or the complete new one. WriteFile writes a new
// file in the same folder, flushes it to the disk and renames it, so that of several writers of one
// path one wins. The new file has the permissions of the old one. A program that is killed during
// the call leaves a file whose name begins with a dot. Only a regular file is replaced: if path is
// anything else, such as a folder, a device or a symbolic link, WriteFile returns an error that
// wraps [ErrInvalid].
func WriteFile(ctx context.Context, path string, tensors []Named, metadata map[string]string, streamed ...Streamed) error {
	if old, err := os.Lstat(path); err == nil && !old.Mode().IsRegular() {
		return fmt.Errorf("safetensors: writing %s: %w: it is not a regular file, but %v", path, ErrInvalid, old.Mode())
	}
	err := output.Write(path, func(w io.Writer) error { return Write(ctx, w, tensors, metadata, streamed...) })
	if err != nil {
		return fmt.Errorf("safetensors: writing %s: %w", path, err)
	}
	return nil
}
