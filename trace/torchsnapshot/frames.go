package torchsnapshot

import (
	"slices"
	"strings"

	"github.com/cistern-ml/cistern/internal/callframe"
	"github.com/cistern-ml/cistern/memcache"
)

// frame is a frame of a stack. Frames of labels have a word in place of the file.
type frame struct {
	name, file string
	line       int64
	memo       uint32 // valid after it was written
	written    bool
}

// said is the texts and frames of a label, made once for each.
type said struct {
	metadata    string
	first, last []*frame // before the calls, and at the root
}

// frames writes stacks. Each frame is written once, and later only its number.
type frames struct {
	*pickler
	calls  map[uintptr]*frame // by program counter; nil: not a call of the program
	labels map[memcache.Label]*said
	words  map[frame]*frame // of labels
}

func newFrames(p *pickler) *frames {
	return &frames{pickler: p, calls: make(map[uintptr]*frame), labels: make(map[memcache.Label]*said), words: make(map[frame]*frame)}
}

// write writes the list of frames of a stack, from the user's line on, and of a label, from the
// innermost to the root.
func (f *frames) write(stack []uintptr, l memcache.Label) {
	label := f.label(l)
	calls := make([]*frame, 0, 64)
	for _, pc := range stack {
		if call := f.call(pc); call != nil {
			calls = append(calls, call)
		}
	}
	calls = callframe.FromUser(calls, func(v *frame) (string, string) { return v.name, v.file })
	list := slices.Concat(label.first, calls, label.last)
	f.list(len(list), func(i int) { f.frame(list[i]) })
}

// label returns the texts and frames of l.
func (f *frames) label(l memcache.Label) *said {
	if s := f.labels[l]; s != nil {
		return s
	}
	s := &said{metadata: metadata(l)}
	if l.Step != 0 {
		s.first = append(s.first, f.word("step "+decimal(l.Step), "step", l.Step))
	}
	for m := memcache.ModulePath(l.Module); m != ""; m = m[:max(0, strings.LastIndexByte(m, '.'))] {
		s.last = append(s.last, f.word(m, "module", 0))
	}
	if l.Category != memcache.CategoryOther || l.Module != "" {
		s.last = append(s.last, f.word(l.Category.String(), "category", 0))
	}
	f.labels[l] = s
	return s
}

// word returns a frame that is not a call. All labels with it share it.
func (f *frames) word(name, kind string, line int64) *frame {
	key := frame{name: name, file: kind, line: line}
	if f.words[key] == nil {
		f.words[key] = &frame{name: name, file: kind, line: line}
	}
	return f.words[key]
}

func (f *frames) call(pc uintptr) *frame {
	v, ok := f.calls[pc]
	if ok {
		return v
	}
	if call, ok := callframe.Of(pc); ok {
		v = &frame{name: call.Function, file: call.File, line: int64(call.Line)}
	}
	f.calls[pc] = v
	return v
}

func (f *frames) frame(v *frame) {
	if v.written {
		f.get(v.memo)
		return
	}
	f.dict(func() {
		f.key("name").text(v.name)
		f.key("filename").name(v.file)
		f.key("line").int(v.line)
	})
	v.memo, v.written = f.put(), true
}
