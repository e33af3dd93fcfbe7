package recording

import (
	"cmp"
	"slices"
	"time"

	"github.com/nlpodyssey/gopickle/types"
)

// Details of the entries of PyTorch's snapshots, which a replay does not need. They are for people:
// a value of another type than PyTorch's is skipped.

// namedDetail is a parsed user_metadata text.
type namedDetail struct {
	label int32
	step  int64
}

// detail returns the details of an entry.
func (s *snapshotReader) detail(d *types.Dict) detail {
	e := detail{label: -1}
	if at, err := intField(d, "time_us", ""); err == nil {
		e.time = at
	}
	if v, ok := field(d, "user_metadata"); ok {
		if text, ok := v.(string); ok && text != "" {
			n, known := s.names[text]
			if !known {
				l, step := parseLabel(text)
				n = namedDetail{s.tables.label(l), step}
				if s.names == nil {
					s.names = make(map[string]namedDetail)
				}
				s.names[text] = n
				// the next opcode reports an excess
				_ = s.budget.Memory(2*int64(len(text)) + int64(container))
			}
			e.label, e.step = n.label, n.step
		}
	}
	e.stack = s.stack(d)
	return e
}

// stack returns the number of the stack of an entry or a block, or -1. PyTorch shares the dict of a
// frame, but makes a list of frames for each entry. That list is emptied; its remainder has the
// stack's number, because other entries may share the list.
func (s *snapshotReader) stack(d *types.Dict) int32 {
	v, _ := field(d, "frames")
	list, ok := v.(*types.List)
	if !ok {
		return -1
	}
	if len(*list) == 0 {
		return -1
	}
	if i, ok := (*list)[0].(stackIndex); ok {
		return int32(i)
	}
	if s.frames == nil {
		s.frames = make(map[*types.Dict]int32)
	}
	s.found = s.found[:0]
	for _, v := range *list {
		d, ok := v.(*types.Dict)
		if !ok {
			continue
		}
		i, ok := s.frames[d]
		if !ok {
			i = s.tables.frame(frameOf(d))
			s.frames[d] = i
			_ = s.budget.Memory(int64(container))
		}
		s.found = append(s.found, i)
	}
	i, added := s.tables.stack(s.found)
	if added {
		_ = s.budget.Memory(8*int64(len(s.found)) + int64(container) + int64(scalar))
		s.emptied = append(s.emptied, types.List{stackIndex(i)})
	}
	if i < 0 {
		s.emptyList(list, nil)
	} else {
		s.emptyList(list, s.emptied[i])
	}
	return i
}

func frameOf(d *types.Dict) (f Frame) {
	f.Function, _ = textField(d, "name", "")
	f.File, _ = textField(d, "filename", "")
	line, _ := intField(d, "line", "")
	f.Line = int(line)
	f.Function, f.File = f.Function[:min(len(f.Function), maxName)], f.File[:min(len(f.File), maxName)]
	return f
}

// another returns a collector of other entries with the same tables, or nil for a nil one.
func (c *collector) another() *collector {
	if c == nil {
		return nil
	}
	return &collector{Details: Details{LabelTable: c.LabelTable, StackTable: c.StackTable, Frames: c.Frames}}
}

// part returns the details of the entries in [from, to), with all tables, or nil for a nil
// collector.
func (c *collector) part(from, to int) *Details {
	if c == nil {
		return nil
	}
	d := c.another().finish()
	d.Times, d.Labels, d.Stacks = sublist(c.Times, from, to), sublist(c.Labels, from, to), sublist(c.Stacks, from, to)
	d.Steps, d.Serials = sublist(c.Steps, from, to), sublist(c.Serials, from, to)
	return d
}

// sublist returns list[from:to] without spare capacity, or nil for a nil list.
func sublist[T any](list []T, from, to int) []T {
	if list == nil {
		return nil
	}
	return list[from:to:to]
}

// at is the detail of entry i.
func (c *collector) at(i int) detail {
	d := detail{label: -1, stack: -1}
	if c.Times != nil {
		d.time = c.Times[i]
	}
	if c.Labels != nil {
		d.label = c.Labels[i]
	}
	if c.Stacks != nil {
		d.stack = c.Stacks[i]
	}
	if c.Steps != nil {
		d.step = c.Steps[i]
	}
	return d
}

// fromFirst makes times relative to the earliest one.
func (d *Details) fromFirst() {
	if d == nil || len(d.Times) == 0 {
		return
	}
	first := slices.Min(d.Times)
	d.Start = time.UnixMicro(first)
	for i := range d.Times {
		d.Times[i] -= first
	}
}

// addBlocks adds the details of a segment's blocks.
func (s *snapshotReader) addBlocks(rec *Recording, blocks types.List) {
	if s.tables == nil {
		return
	}
	for _, v := range blocks {
		d := BlockDetail{Label: -1, Stack: -1}
		if block, ok := v.(*types.Dict); ok {
			d.Stack = s.stack(block)
		}
		rec.Details.Final = append(rec.Details.Final, d)
	}
	rec.Details.Frames, rec.Details.StackTable = s.tables.Frames, s.tables.StackTable
}

// addAnnotations makes marks of the pairs START and END of torch.profiler.record_function, which
// have a name. An END ends the last open mark of its name.
func (s *snapshotReader) addAnnotations(top *types.Dict, byDevice map[int64]*Recording) error {
	list, err := listField(top, "external_annotations", "external_annotations")
	if err != nil {
		return err
	}
	open := make(map[annotation][]int)
	for _, v := range list {
		d, ok := v.(*types.Dict)
		if !ok {
			continue
		}
		if err := s.budget.Charge(definitionMemory, lookupWork+4*int64(len(*d))); err != nil {
			return err
		}
		name, _ := textField(d, "name", "")
		stage, _ := textField(d, "stage", "")
		at, err1 := intField(d, "time_us", "")
		dev, err2 := intField(d, "device", "")
		rec := byDevice[dev]
		if err1 != nil || err2 != nil || rec == nil || rec.Details == nil {
			continue
		}
		at -= rec.Details.Start.UnixMicro()
		entry, _ := slices.BinarySearchFunc(rec.Details.Times, at, cmp.Compare)
		marks, key := &rec.Details.Marks, annotation{dev, name}
		if stage == "START" {
			open[key] = append(open[key], len(*marks))
			*marks = append(*marks, Mark{Name: name, Start: at, End: -1, From: entry, To: -1})
		} else if last := len(open[key]) - 1; last >= 0 {
			m := &(*marks)[open[key][last]]
			m.End, m.To = at, max(entry, m.From)
			open[key] = open[key][:last]
		}
	}
	return nil
}

// annotation is the part that an END shares with its START.
type annotation struct {
	device int64
	name   string
}
