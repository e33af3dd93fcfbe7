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
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"unicode/utf8"

	"github.com/cistern-ml/cistern/tensor"
)

// Named is a tensor to write.
type Named struct {
	Name string
	*tensor.Tensor
}

// Write writes the tensors to w, in the order of the format's own writers: by dtype, the largest elements first, and by name. So the
// same tensors and metadata give the same bytes. Tensors are waited for one after the other, and streamed through pinned memory; those of streamed
// are in their places among them.
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

// layout puts the entries into the order of their data, and makes the header with its length.
func layout(all []entry, metadata map[string]string) (_ []entry, text []byte, err error) {
	for _, t := range all {
		switch {
		case t.err != nil:
			return nil, nil, fmt.Errorf("%q: %w", t.name, t.err)
		case nameOf(t.dtype) == "":
			return nil, nil, fmt.Errorf("%q: %w: the format has no %v", t.name, tensor.ErrDtype, t.dtype)
		case !utf8.ValidString(t.name):
			return nil, nil, fmt.Errorf("%w: the name %q is no UTF-8", ErrInvalid, t.name)
		case t.name == metadataKey:
			return nil, nil, fmt.Errorf("%q: %w: that name is the metadata's", t.name, ErrInvalid)
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

// WriteFile writes a file and puts it in the place of the one that has the name, if there is one: whenever the program or the machine
// stops, the name has the old file or the new one, whole. It is written as path with ".tmp" behind, flushed to the disk, and
// renamed. The new file has the permissions of the old one. A symbolic link is replaced, and what it points to stays; a path that is
// there and no file, such as a folder or a device, wraps [ErrInvalid]. One goroutine of one program at a time writes a path.
func WriteFile(ctx context.Context, path string, tensors []Named, metadata map[string]string, streamed ...Streamed) (err error) {
	old, err := os.Stat(path)
	if err == nil && !old.Mode().IsRegular() {
		return fmt.Errorf("safetensors: writing %s: %w: it is no file, but %v", path, ErrInvalid, old.Mode())
	}
	exists := err == nil
	temporary := path + ".tmp"
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	err = Write(ctx, f, tensors, metadata, streamed...)
	if err == nil && exists {
		err = f.Chmod(old.Mode().Perm())
	}
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("safetensors: writing %s: %w", path, err), os.Remove(temporary))
	}
	return syncFolder(filepath.Dir(path))
}

// syncFolder flushes the folder's names to the disk, where the system and the file system can.
func syncFolder(name string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		err = nil // the new file is there, but this file system does not flush folders
	}
	if err := errors.Join(err, d.Close()); err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	return nil
}
