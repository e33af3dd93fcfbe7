package timeline

import (
	"fmt"
	"math"
	"time"
)

// program is the trace's process of everything outside of devices.
const program = "program"

// lanes are the lanes of a file, by process and group. A lane gets its name at its first use.
type lanes struct {
	file      *file
	processes map[string]int
	groups    map[groupKey]*group
	threads   int
	caches    map[string]int // the number that have counters, by process
}

type groupKey struct{ process, name string }

// group is the lanes of one name, as many as its spans overlap.
type group struct {
	lanes   *lanes
	process int
	name    string
	list    []lane
	ends    []time.Duration // of the last spans

	ended time.Duration // of the last span that queued placed, by its own clock
}

// of returns a group of lanes.
func (l *lanes) of(process, name string) *group {
	key := groupKey{process, name}
	if g := l.groups[key]; g != nil {
		return g
	}
	if l.groups == nil {
		l.groups, l.processes = make(map[groupKey]*group), make(map[string]int)
	}
	p, ok := l.processes[process]
	if !ok {
		p = len(l.processes) + 1
		l.processes[process] = p
		l.file.add(event{phase: "M", at: lane{process: p}, name: "process_name", args: []arg{text("name", process)}})
	}
	g := &group{lanes: l, process: p, name: name}
	l.groups[key] = g
	return g
}

// fixed returns lane i of the group, and makes it and those before it if necessary.
func (g *group) fixed(i int) lane {
	for len(g.list) <= i {
		g.lanes.threads++
		at, name := lane{g.process, g.lanes.threads}, g.name
		if n := len(g.list); n > 0 {
			name = fmt.Sprintf("%s (%d)", g.name, n+1)
		}
		g.list, g.ends = append(g.list, at), append(g.ends, 0)
		g.lanes.file.add(event{phase: "M", at: at, name: "thread_name", args: []arg{text("name", name)}})
		g.lanes.file.add(event{phase: "M", at: at, name: "thread_sort_index", args: []arg{number("sort_index", int64(at.thread))}})
	}
	return g.list[i]
}

// counters returns the lane of another cache's counters, and the suffix of their names, because
// viewers identify the counters of a process by name.
func (l *lanes) counters(process string) (at lane, suffix string) {
	if l.caches == nil {
		l.caches = make(map[string]int)
	}
	n := l.caches[process]
	l.caches[process]++
	if n > 0 {
		suffix = fmt.Sprintf(" (%d)", n+1)
	}
	return l.of(process, "memory").fixed(n), suffix
}

// free returns the first lane whose spans have all ended at from, and adds a span. The spans of a
// lane thus never overlap, although they come in any order.
func (g *group) free(from, to time.Duration) lane {
	i := 0
	for i < len(g.ends) && g.ends[i] > from {
		i++
	}
	at := g.fixed(i)
	g.ends[i] = max(from, to)
	return at
}

// enter takes the first lane whose spans have all ended at from, until leave.
func (g *group) enter(from time.Duration) (place int, at lane) {
	for place < len(g.ends) && g.ends[place] > from {
		place++
	}
	at = g.fixed(place)
	g.ends[place] = math.MaxInt64
	return place, at
}

// leave releases a lane of enter.
func (g *group) leave(place int, to time.Duration) { g.ends[place] = to }

// shortest is the least duration of a span of a stream, because an arrow can't end in an empty
// span.
const shortest = time.Nanosecond

// queued returns the only lane of a stream, whose spans are in sequence, and the times of a span
// there. own is the span's begin by a clock of its own, and by that clock it can't have begun
// before the previous span ended. If the two overlap only in the host's times, the span is moved,
// because its duration is known better than its begin.
func (g *group) queued(from, to, own time.Duration) (at lane, began, ended time.Duration) {
	at = g.fixed(0)
	overlap := max(0, g.ended-own)
	took := max(shortest, to-from-overlap)
	g.ended = own + overlap + took
	began = max(from+overlap, g.ends[0])
	ended = began + took
	g.ends[0] = ended
	return at, began, ended
}
