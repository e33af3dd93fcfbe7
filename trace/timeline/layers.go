package timeline

import (
	"time"

	"github.com/cistern-ml/cistern/memcache"
)

// layers are the module that the program is in, by the labels of allocations and operations: a span
// for each part of its path, from the first of them inside of it to the last one before another
// module's, or before the other pass.
type layers struct {
	module string
	pass   string // "": no label was of a pass since open was empty
	step   int64
	open   []layer       // of the module, each inside the one before
	last   time.Duration // the end of the last span
}

type layer struct {
	path     string
	from, to time.Duration
}

// see takes the label of an allocation or an operation. Labels of no pass, such as those of
// workspaces, belong to that of their neighbours. t.mu is held.
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
		from = max(from, l.last) // of another goroutine
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

// prefixes of "a.b.c" are "a", "a.b" and "a.b.c".
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

// close writes what is open.
func (l *layers) close(t *Timeline) {
	l.closeTo(t, 0)
	l.module, l.pass = "", ""
}

// closeTo writes all but the n outermost parts.
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
