package timeline

import (
	"time"

	"github.com/cistern-ml/cistern/memcache"
)

// layers is the present module of the program, by the labels of allocations and operations. Each
// part of the module's path has a span, from the first of these inside of it to the last one before
// another module, or before the other pass.
type layers struct {
	module string
	pass   string // "": no label had a pass since open was empty
	step   int64
	open   []layer       // of the module, each inside the previous one
	last   time.Duration // the end of the last span
}

type layer struct {
	path     string
	from, to time.Duration
}

// see adds the label of an allocation or an operation. Labels without a pass, such as those of
// workspaces, belong to the pass of their neighbours. t.mu is held.
func (l *layers) see(t *Timeline, label memcache.Label, from, to time.Duration) {
	pass := passOf(label)
	if label.Step != l.step || pass != "" && l.pass != "" && pass != l.pass {
		l.close(t)
		l.step = label.Step
	}
	if label.Module != l.module {
		path := prefixes(memcache.ModulePath(label.Module))
		same := 0
		for same < min(len(path), len(l.open)) && path[same] == l.open[same].path {
			same++
		}
		l.closeTo(t, same)
		if same == 0 {
			l.pass = ""
		}
		from = max(from, l.last) // last may be of another goroutine
		for _, p := range path[same:] {
			l.open = append(l.open, layer{p, from, from})
		}
		l.module = label.Module
	}
	if pass != "" {
		l.pass = pass
	}
	for i := range l.open {
		l.open[i].to = max(l.open[i].to, to)
	}
}

// prefixes returns "a", "a.b" and "a.b.c" of "a.b.c".
func prefixes(module string) (list []string) {
	for i := range module {
		if module[i] == '.' {
			list = append(list, module[:i])
		}
	}
	if module != "" {
		list = append(list, module)
	}
	return list
}

// close writes all open spans.
func (l *layers) close(t *Timeline) {
	l.closeTo(t, 0)
	l.module, l.pass = "", ""
}

// closeTo writes all except the n outermost parts.
func (l *layers) closeTo(t *Timeline, n int) {
	for i := len(l.open) - 1; i >= n; i-- {
		o := l.open[i]
		var args []arg
		if l.step != 0 {
			args = []arg{number("step", l.step)}
		}
		name := o.path
		if l.pass != "" {
			name += " " + l.pass
		}
		t.file.add(span{name: name, kind: "layer", from: o.from, to: o.to, args: args}.event(t.lanes.of(program, "layers").fixed(0)))
		l.last = max(l.last, o.to)
		l.open = l.open[:i]
	}
}
