package diff

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/budget"
	"github.com/cistern-ml/cistern/internal/recording"
)

// ErrInvalid is the class of errors about wrong arguments, for errors.Is. It is
// [device.ErrInvalid].
var ErrInvalid = device.ErrInvalid

// File is a file of a run.
type File struct {
	Name string // for errors and results
	io.Reader
}

// Options are those of [Read]. A limit of 0 means the default: 256 Mi, or 8 for each byte of the
// file if that is more.
type Options struct {
	MaxMemory int64 // bytes of memory for each file
	MaxWork   int64 // units of about 20 ns
}

// Read compares two files, which may be compressed with gzip or zstd, one after the other. The
// result has a Diff for each device or rank that both have, at least one.
func Read(o Options, before, after File) ([]*Diff, error) {
	if err := o.limits().Check(); err != nil {
		return nil, fmt.Errorf("diff: Read: %w: %w", ErrInvalid, err)
	}
	var runs [2][]*run
	for i, f := range []File{before, after} {
		if f.Reader == nil {
			return nil, fmt.Errorf("diff: Read: %s: %w: the reader is nil", f.Name, ErrInvalid)
		}
		var err error
		if runs[i], err = o.read(f); err != nil {
			return nil, fmt.Errorf("diff: %w", err)
		}
	}
	return pair(runs[0], runs[1])
}

// pair compares the runs that have the same place in both files, or the only ones.
func pair(before, after []*run) (list []*Diff, err error) {
	if len(before) == 1 && len(after) == 1 {
		return []*Diff{compare(before[0], after[0])}, nil
	}
	var alone []string
	counterpart := func(r *run, other []*run) *run {
		i := slices.IndexFunc(other, func(o *run) bool { return o.place == r.place })
		if i < 0 {
			alone = append(alone, r.name+" is not compared: the other file has no counterpart")
			return nil
		}
		return other[i]
	}
	for _, r := range before {
		if other := counterpart(r, after); other != nil {
			list = append(list, compare(r, other))
		}
	}
	for _, r := range after {
		counterpart(r, before)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("diff: the files have no device or rank in common: %s", strings.Join(alone[:min(len(alone), 4)], "; "))
	}
	list[0].Notes = append(list[0].Notes, alone...)
	return list, nil
}

func (o Options) limits() budget.Limits {
	return budget.Limits{MaxMemory: o.MaxMemory, MaxWork: o.MaxWork}
}

// read reduces a file of any kind to its runs, at least one.
func (o Options) read(f File) ([]*run, error) {
	in := bufio.NewReaderSize(f, peeked)
	start, err := in.Peek(peeked)
	if len(start) == 0 && err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("the file is empty; want " + kinds)
		}
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	from := o.steps
	switch kindOf(start) {
	case 'r':
		return o.recordings(in, f.Name)
	case 'h':
		from = o.heap
	case 0:
		return nil, fmt.Errorf("%s: the file begins with %.8q; want %s", f.Name, start, kinds)
	}
	b := budget.New(o.limits())
	plain, done, err := recording.Open(in, b)
	defer done()
	var runs []*run
	if err == nil {
		runs, err = from(plain, f.Name, b)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("the file is truncated: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	return runs, nil
}

// kinds are the kinds of files, for errors.
const kinds = "a recording, a snapshot of PyTorch, profiles of steps as JSON lines, or a heap profile of pprof"

// peeked is the number of bytes that determine the kind of a file.
const peeked = 64 << 10

// kindOf returns the kind of a file by its first bytes: 'r' for a recording or a snapshot, 's' for
// profiles of steps, 'h' for a heap profile, 0 for none of them.
func kindOf(start []byte) byte {
	in, done, err := recording.Open(bytes.NewReader(start), budget.New(budget.Limits{}))
	defer done()
	if err != nil {
		return 0
	}
	start, _ = in.Peek(peeked)
	switch text := bytes.TrimLeft(start, " \t\r\n"); {
	case bytes.HasPrefix(text, []byte("{")):
		if isSteps(text) {
			return 's'
		}
		return 'r'
	case bytes.HasPrefix(text, []byte("[")), bytes.HasPrefix(text, []byte{0x80}):
		return 'r'
	case bytes.HasPrefix(start, []byte{0x0a}): // the first sample type
		return 'h'
	}
	return 0
}

// isSteps reports whether the first object of JSON is a profile of a step.
func isSteps(text []byte) bool {
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err := d.Token(); err != nil {
		return false
	}
	for d.More() {
		name, err := d.Token()
		if err != nil || name == "step" {
			return err == nil
		}
		var skipped json.RawMessage
		if d.Decode(&skipped) != nil {
			return false
		}
	}
	return false
}
