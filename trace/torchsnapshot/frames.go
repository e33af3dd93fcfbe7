package torchsnapshot

import (
	"runtime"
	"strings"

	"github.com/cistern-ml/cistern/memcache"
)

// frame is one of a stack. Those of labels have a word in place of the file.
type frame struct {
	name, file string
	line       int64
}

// frames writes stacks. Each frame is written once, and then referred to.
type frames struct {
	*pickler
	calls map[uintptr][]frame // by program counter: several where calls were inlined
	memo  map[frame]uint32
}

func newFrames(p *pickler) *frames {
	return &frames{pickler: p, calls: make(map[uintptr][]frame), memo: make(map[frame]uint32)}
}

// write writes the list of a stack's and a label's frames.
func (f *frames) write(stack []uintptr, l memcache.Label) {
	list := f.of(stack, l)
	f.list(len(list), func(i int) { f.frame(list[i]) })
}

// of are the frames from the innermost to the root.
func (f *frames) of(stack []uintptr, l memcache.Label) []frame {
	var list []frame
	if l.Step != 0 {
		list = append(list, frame{"step " + decimal(l.Step), "step", l.Step})
	}
	for _, pc := range stack {
		list = append(list, f.call(pc)...)
	}
	for m := l.Module; m != ""; m = m[:max(0, strings.LastIndexByte(m, '.'))] {
		list = append(list, frame{m, "module", 0})
	}
	if l.Category != memcache.CategoryOther || l.Module != "" {
		list = append(list, frame{l.Category.String(), "category", 0})
	}
	return list
}

func (f *frames) call(pc uintptr) []frame {
	if list, ok := f.calls[pc]; ok {
		return list
	}
	var list []frame
	for all, more := runtime.CallersFrames([]uintptr{pc}), true; more; {
		var r runtime.Frame
		r, more = all.Next()
		list = append(list, frame{r.Function, r.File, int64(r.Line)})
	}
	f.calls[pc] = list
	return list
}

func (f *frames) frame(v frame) {
	if n, ok := f.memo[v]; ok {
		f.get(n)
		return
	}
	f.dict(func() {
		f.key("name").text(v.name)
		f.key("filename").name(v.file)
		f.key("line").int(v.line)
	})
	f.memo[v] = f.put()
}
