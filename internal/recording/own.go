package recording

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/cistern-ml/cistern/internal/budget"
)

// Our own recordings are JSON lines that a program writes while it runs, so that a file can be read
// up to its end, wherever that is. The first line is the header. A line that is a list is an entry:
//
//	["alloc", address, size, stream, time, stack, bytes, label, step, serial, flags]
//	["free", address, size, stream, time, stack]
//
// and so on for the other actions, of which "relabel" gives a block in use another label. Values
// that are missing at the end are 0, or -1 for stack and label. "free" is a free_requested with an
// immediate free_completed. Times are microseconds since the header's start. A memory limit, in the
// header and in set_limit, is at least 1 byte: 0 is written as 1, which has the same effect. No
// limit is null in the header and 0 in set_limit.
//
// A line that is an object defines a value before the first entry that refers to it by its number,
// or begins or ends a mark:
//
//	{"label": 0, "module": "encoder.0", "category": "activation", "tags": "run=7"}
//	{"frame": 0, "function": "main.train", "file": "/src/train.go", "line": 17}
//	{"stack": 0, "frames": [2, 1, 0]}
//	{"options": 0, "conf": "max_split_size_mb:200"}
//	{"mark": 0, "name": "step", "step": 17, "time": 1234}
//	{"end": 0, "time": 2345}
//
// The last line of a closed recording has "stats" and "segments" as PyTorch's headers do, and of
// each block serial, label, step and stack.

// Format is the format in the header of our own recordings.
const Format = "cistern recording 1"

// relabel is the action that gives a block in use another label, for its whole hand-out, as in the
// cache's profiles. It makes no entry.
const relabel = "relabel"

// atOnce is the action of a free_requested with an immediate free_completed.
const atOnce = "free"

// definition is a line that is an object.
type definition struct {
	Label    *int    `json:"label"`
	Module   string  `json:"module"`
	Category string  `json:"category"`
	Tags     string  `json:"tags"`
	Frame    *int    `json:"frame"`
	Function string  `json:"function"`
	File     string  `json:"file"`
	Line     int     `json:"line"`
	Stack    *int    `json:"stack"`
	Frames   []int32 `json:"frames"`
	Options  *int    `json:"options"`
	Conf     string  `json:"conf"`
	Mark     *int    `json:"mark"`
	Name     string  `json:"name"`
	Step     int64   `json:"step"`
	End      *int    `json:"end"`
	Time     int64   `json:"time"`

	Stats    map[string]int64 `json:"stats"`
	Segments headerSegments   `json:"segments"`
	Details  []finalDetail    `json:"details"`
}

// finalDetail is [serial, label, step, stack] of a block at the end.
type finalDetail BlockDetail

func (d *finalDetail) UnmarshalJSON(text []byte) error {
	fields := []any{&d.Serial, &d.Label, &d.Step, &d.Stack}
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	if len(fields) != 4 {
		return fmt.Errorf("the details of a block have %d values; they are [serial, label, step, stack]", len(fields))
	}
	return nil
}

// ownReader reads the lines after the header.
type ownReader struct {
	rec    *Recording
	budget *budget.Budget
	tables *collector
	closed bool // the last line was read
	fields [10]int64
	live   map[int64]int // entries of blocks in use, by address
}

// readOwn reads the lines after the header. If the file ends before its last line, the recording
// ends there.
func readOwn(in *lineReader, rec *Recording, o Options) error {
	r := &ownReader{rec: rec, budget: in.budget, tables: newCollector(o), live: make(map[int64]int)}
	rec.Unfinished = true
	for n := 2; ; n++ {
		line, err := in.line()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break // an unterminated line is incomplete
		}
		if err == nil {
			err = r.add(line)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	if rec.Initial > len(rec.Entries) {
		rec.Initial = len(rec.Entries)
	}
	if rec.Details = r.tables.finish(); rec.Details != nil && rec.start != 0 {
		rec.Details.Start = time.UnixMicro(rec.start)
	}
	return nil
}

// add handles a line.
func (r *ownReader) add(line []byte) error {
	switch {
	case r.closed:
		return errors.New("the recording ended in the line before")
	case len(line) > 0 && line[0] == '{':
		return r.define(line)
	}
	action, n, err := splitEntry(line, &r.fields)
	if err != nil {
		return err
	}
	return r.entry(action, r.fields[:n])
}

// entry handles an entry; f has its fields after the action.
func (r *ownReader) entry(action string, f []int64) error {
	if len(f) < 3 {
		return fmt.Errorf("%d values; an entry is [action, address, size, stream, ...]", len(f)+1)
	}
	if action == relabel {
		return r.relabel(f)
	}
	free := action == atOnce
	if free {
		action = "free_requested"
	}
	e, ok, err := newEntry(action, uint64(f[0]), f[1], uint64(f[2]), true)
	if err != nil || !ok {
		return err
	}
	if e.Action == SetOptions && int(e.Addr) >= len(r.rec.Options) {
		return fmt.Errorf("%v: options %d were not defined", e, e.Addr)
	}
	d := detail{label: -1, stack: -1}
	for i, v := range f[3:] {
		switch i {
		case 0:
			d.time = v
		case 1:
			d.stack = int32(min(max(v, -2), math.MaxInt32))
		case 2:
			e.Bytes = v
		case 3:
			d.label = int32(min(max(v, -2), math.MaxInt32))
		case 4:
			d.step = v
		case 5:
			d.serial = uint64(v)
		case 6:
			e.Flags = Flags(v) & (Grew | Private | AtOnce)
		}
	}
	if e.Bytes != 0 && (e.Action != Alloc || e.Bytes < e.Size || e.Bytes >= MaxSize) {
		return fmt.Errorf("%v: a block of %d bytes", e, e.Bytes)
	}
	if free {
		e.Flags |= AtOnce
	}
	if err := r.refer(d); err != nil {
		return fmt.Errorf("%v: %w", e, err)
	}
	if err := r.append(e, d); err != nil || !free {
		return err
	}
	e.Action, e.Flags, d.stack = FreeCompleted, 0, -1
	return r.append(e, d)
}

// relabel gives a block in use another label.
func (r *ownReader) relabel(f []int64) error {
	if r.tables == nil || len(f) < 7 {
		return nil
	}
	i, ok := r.live[f[0]]
	d := detail{label: int32(min(max(f[6], -2), math.MaxInt32)), stack: -1}
	if err := r.refer(d); err != nil || !ok {
		return err
	}
	if len(f) > 7 {
		d.step = f[7]
	}
	t := &r.tables.Details
	if t.Labels == nil && d.label >= 0 {
		t.Labels = slices.Repeat([]int32{-1}, r.tables.n)
	}
	if t.Steps == nil && d.step != 0 {
		t.Steps = make([]int64, r.tables.n)
	}
	if t.Labels != nil {
		t.Labels[i] = d.label
	}
	if t.Steps != nil {
		t.Steps[i] = d.step
	}
	return nil
}

func (r *ownReader) append(e Entry, d detail) error {
	if err := r.rec.charge(r.budget, r.tables != nil); err != nil {
		return err
	}
	if r.tables != nil {
		switch e.Action {
		case Alloc:
			r.live[int64(e.Addr)] = len(r.rec.Entries)
		case FreeCompleted:
			delete(r.live, int64(e.Addr))
		}
	}
	r.rec.Entries = append(r.rec.Entries, e)
	r.rec.PrivatePools = r.rec.PrivatePools || e.Flags&Private != 0
	r.tables.add(d)
	return nil
}

// refer checks that an entry's references are defined.
func (r *ownReader) refer(d detail) error {
	if r.tables == nil {
		return nil
	}
	if d.label < -1 || int(d.label) >= len(r.tables.LabelTable) {
		return fmt.Errorf("label %d was not defined", d.label)
	}
	if d.stack < -1 || int(d.stack) >= len(r.tables.StackTable) {
		return fmt.Errorf("stack %d was not defined", d.stack)
	}
	return nil
}

// define handles an object.
func (r *ownReader) define(line []byte) error {
	last, options := bytes.HasPrefix(line, []byte(`{"stats"`)), bytes.HasPrefix(line, []byte(`{"options"`))
	if r.tables == nil && !last && !options {
		return nil
	}
	var d definition
	if err := json.Unmarshal(line, &d); err != nil {
		return err
	}
	if last {
		return r.end(&d)
	}
	if err := checkStrings(d.Module, d.Category, d.Tags, d.Name, d.Conf); err != nil {
		return err
	}
	if len(d.Function) > maxName || len(d.File) > maxName {
		return errTooMuch("bytes in a name", maxName)
	}
	// a byte of a list may be a number
	if err := r.budget.Memory(definitionMemory + 3*int64(len(line))); err != nil {
		return err
	}
	if options {
		r.rec.Options = append(r.rec.Options, d.Conf)
		if d.Options == nil {
			return errors.New("options without a number")
		}
		return numbered("options", *d.Options, len(r.rec.Options)-1)
	}
	t := &r.tables.Details
	switch {
	case d.Label != nil:
		t.LabelTable = append(t.LabelTable, Label{Module: d.Module, Category: d.Category, Tags: d.Tags})
		return numbered("label", *d.Label, len(t.LabelTable)-1)
	case d.Frame != nil:
		t.Frames = append(t.Frames, Frame{Function: d.Function, File: d.File, Line: d.Line})
		return numbered("frame", *d.Frame, len(t.Frames)-1)
	case d.Stack != nil:
		for _, f := range d.Frames {
			if f < 0 || int(f) >= len(t.Frames) {
				return fmt.Errorf("frame %d was not defined", f)
			}
		}
		t.StackTable = append(t.StackTable, d.Frames)
		return numbered("stack", *d.Stack, len(t.StackTable)-1)
	case d.Mark != nil:
		t.Marks = append(t.Marks, Mark{Name: d.Name, Step: d.Step, Start: d.Time, End: -1, From: len(r.rec.Entries), To: -1})
		return numbered("mark", *d.Mark, len(t.Marks)-1)
	case d.End != nil:
		if *d.End < 0 || *d.End >= len(t.Marks) || t.Marks[*d.End].To >= 0 {
			return fmt.Errorf("the mark %d did not begin, or has ended", *d.End)
		}
		t.Marks[*d.End].End, t.Marks[*d.End].To = d.Time, len(r.rec.Entries)
	}
	return nil // from a later version
}

func numbered(what string, got, want int) error {
	if got != want {
		return fmt.Errorf("%s %d is the next, not %d", what, want, got)
	}
	return nil
}

// end handles the last line.
func (r *ownReader) end(d *definition) (err error) {
	r.closed, r.rec.Unfinished, r.rec.Stats = true, false, d.Stats
	if r.rec.Segments, err = d.Segments.list(r.budget); err != nil || r.tables == nil {
		return err
	}
	if err := r.budget.Memory(fieldMemory * int64(len(d.Stats)+len(d.Details))); err != nil {
		return err
	}
	for name := range d.Stats {
		if err := checkStrings(name); err != nil {
			return err
		}
	}
	for _, f := range d.Details {
		if err := r.refer(detail{label: f.Label, stack: f.Stack}); err != nil {
			return err
		}
		r.tables.Final = append(r.tables.Final, BlockDetail(f))
	}
	return nil
}

// splitEntry parses ["action", number, ...]. It accepts only the form of our own writer, since
// encoding/json takes ten times as long. Numbers may be as large as a uint64.
func splitEntry(line []byte, fields *[10]int64) (action string, n int, err error) {
	rest, ok := bytes.CutPrefix(line, []byte(`["`))
	end := bytes.IndexByte(rest, '"')
	if !ok || end < 0 || len(rest) < 2 || rest[len(rest)-1] != ']' {
		return "", 0, fmt.Errorf("%q is not an entry", clip(string(line)))
	}
	name, list := rest[:end], rest[end+1:len(rest)-1]
	for len(list) > 0 {
		if list[0] != ',' || n == len(fields) {
			return "", 0, fmt.Errorf("%q: want at most %d numbers with commas between them", clip(string(line)), len(fields))
		}
		value := list[1:]
		if i := bytes.IndexByte(value, ','); i >= 0 {
			value = value[:i]
		}
		list = list[1+len(value):]
		if fields[n], err = parseNumber(value); err != nil {
			return "", 0, err
		}
		n++
	}
	return string(name), n, nil
}

// parseNumber parses an integer. A uint64 keeps its bits.
func parseNumber(text []byte) (int64, error) {
	if len(text) > 0 && len(text) < 19 {
		var v int64
		for _, c := range text {
			if c < '0' || c > '9' {
				v = -1
				break
			}
			v = v*10 + int64(c-'0')
		}
		if v >= 0 {
			return v, nil
		}
	}
	if v, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		return v, nil
	}
	v, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not an integer", clip(string(text)))
	}
	return int64(v), nil
}
