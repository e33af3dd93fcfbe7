package report

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/cistern-ml/cistern/internal/recording"
)

// fromRecording makes a source of a recording, with its details.
func fromRecording(rec *recording.Recording) *source {
	s := &source{name: rec.Name, conf: rec.Conf, sizing: sizingOf(rec.Conf, rec.Settings), owners: newOwners()}
	d := newDetails(rec, s.owners)
	s.entries = make([]entry, len(rec.Entries))
	last := int64(0)
	for i := range rec.Entries {
		e := &rec.Entries[i]
		out := entry{action: e.Action, addr: uint64(e.Addr), requested: e.Size, size: e.Bytes, stream: e.Stream, owner: d.owner(d.label(i), d.stack(i)), step: d.step(i)}
		if at := d.time(i); at != 0 {
			last = max(last, at)
			out.time = last
		}
		s.entries[i] = out
	}
	s.addFinal(rec, d)
	s.addMarks(d)
	s.notes = append(s.notes, rec.Notes...)
	s.total, s.began = rec.TotalMemory, rec.Initial > 0
	if rec.LimitKnown {
		s.limit = rec.Limit
	}
	if rec.Initial > 0 {
		s.notes = append(s.notes, "memory was in use when the recording began: its first "+strconv.Itoa(rec.Initial)+" entries describe that memory")
	}
	if rec.Unfinished {
		s.notes = append(s.notes, "the recording was not closed: it may lack the program's last events")
	}
	return s
}

// details are a recording's details, with this package's numbers of labels and stacks.
type details struct {
	*recording.Details
	owners *owners
	stacks []int32
	words  []*word // of each stack; nil: none
	known  map[[2]int32]int32
	nobody int8 // the category without a label
}

func newDetails(rec *recording.Recording, o *owners) *details {
	d := &details{Details: rec.Details, owners: o, known: make(map[[2]int32]int32), nobody: unlabelled}
	if d.Details == nil {
		d.Details = &recording.Details{}
	}
	for _, l := range d.LabelTable {
		if l.Category != "" {
			d.nobody = 0
		}
	}
	for _, stack := range d.StackTable {
		frames := make([]frame, len(stack))
		for i, f := range stack {
			frames[i] = frame{d.Frames[f].Function, d.Frames[f].File, d.Frames[f].Line}
		}
		frames, label := takeWords(frames)
		if label != nil {
			d.nobody = 0
		}
		d.stacks, d.words = append(d.stacks, o.stack(frames)), append(d.words, label)
	}
	return d
}

func (d *details) label(i int) int32 { return at(d.Labels, i, -1) }
func (d *details) stack(i int) int32 { return at(d.Stacks, i, -1) }

// step returns the step of an entry's label, or of the label in its stack; 0: none.
func (d *details) step(i int) int64 {
	return cmp.Or(at(d.Steps, i, 0), d.word(d.stack(i)).step)
}

// word returns the label in a stack; zero: there is none.
func (d *details) word(stack int32) word {
	if w := at(d.words, int(stack), nil); w != nil {
		return *w
	}
	return word{}
}

// time returns the time of an entry in ns since 1970; 0: unknown.
func (d *details) time(i int) int64 {
	if d.Times == nil {
		return 0
	}
	start := int64(1) // of recordings without a start time
	if !d.Start.IsZero() {
		start = d.Start.UnixNano()
	}
	return start + at(d.Times, i, 0)*1000
}

// at returns an element of a list, or none if the list is shorter.
func at[T any](list []T, i int, none T) T {
	if i < 0 || i >= len(list) {
		return none
	}
	return list[i]
}

// owner returns the number of the owner with a label and a stack.
func (d *details) owner(label, stack int32) int32 {
	key := [2]int32{label, stack}
	id, ok := d.known[key]
	if !ok {
		who := owner{category: d.nobody, stack: at(d.stacks, int(stack), -1)}
		if l := at(d.LabelTable, int(label), recording.Label{}); l != (recording.Label{}) {
			who.module, who.tags = l.Module, l.Tags
			who.category = d.category(l.Category)
		}
		if w := d.word(stack); w != (word{}) {
			_, tags, _ := strings.Cut(who.tags, "; ") // the text begins with the label
			who.category, who.module, who.tags = d.category(w.category), w.module, strings.ReplaceAll(tags, "; ", "\n")
		}
		id = d.owners.add(who)
		d.known[key] = id
	}
	return id
}

// category returns the number of a category's name; a name that the cache does not have is "other".
func (d *details) category(name string) int8 {
	if name == "" {
		return d.nobody
	}
	for c := range categories - 1 {
		if categoryName(c) == name {
			return int8(c)
		}
	}
	return 0
}

// addFinal converts the segments at the end.
func (s *source) addFinal(rec *recording.Recording, d *details) {
	if rec.Segments != nil {
		s.final = []finalSegment{}
	}
	n := 0
	for i := range rec.Segments {
		seg := &rec.Segments[i]
		f := finalSegment{addr: uint64(seg.Address), size: seg.Size, stream: seg.Stream, mapped: seg.Mapped || s.sizing.config.ExpandableSegments}
		for _, b := range seg.Blocks {
			detail := at(d.Final, n, recording.BlockDetail{Label: -1, Stack: -1})
			n++
			if b.State != "inactive" {
				f.blocks = append(f.blocks, finalBlock{addr: uint64(b.Address), size: b.Size, requested: b.Requested,
					pending: b.State != "active_allocated", owner: d.owner(detail.Label, detail.Stack), step: cmp.Or(detail.Step, d.word(detail.Stack).step)})
			}
		}
		s.final = append(s.final, f)
	}
}

// addMarks converts the marks of steps and the other marks. torch.profiler marks its steps as
// ProfilerStep#n. In a recording without marks of steps, each step ends with a step of the
// optimiser.
func (s *source) addMarks(d *details) {
	n := len(s.entries)
	var optimizer []span
	for _, m := range d.Marks {
		to := m.To
		if to < 0 {
			to = n
		}
		mark := span{name: m.Name, step: m.Step, from: int32(min(max(m.From, 0), n)), to: int32(min(max(to, m.From, 0), n)), h2d: -1, d2h: -1, hostTime: -1, deviceTime: -1}
		if text, ok := strings.CutPrefix(m.Name, "ProfilerStep#"); ok {
			if number, err := strconv.ParseInt(text, 10, 64); err == nil {
				mark.name, mark.step = recording.StepMark, number
			}
		}
		if mark.name == recording.StepMark {
			mark.name = ""
			s.spans = append(s.spans, mark)
			continue
		}
		if strings.HasPrefix(m.Name, "Optimizer.step#") && m.To >= 0 {
			optimizer = append(optimizer, mark)
		}
		s.marks = append(s.marks, mark)
	}
	if len(s.spans) > 0 || len(d.Steps) > 0 || len(optimizer) == 0 {
		return
	}
	from := int32(0)
	for i, m := range optimizer {
		s.spans = append(s.spans, span{step: int64(i + 1), from: from, to: max(m.to, from), h2d: -1, d2h: -1, hostTime: -1, deviceTime: -1})
		from = max(m.to, from)
	}
	s.notes = append(s.notes, "the recording has no step marks: each step is taken to end with a step of the optimiser ("+optimizer[0].name+")")
}
