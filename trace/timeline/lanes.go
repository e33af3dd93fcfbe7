package timeline

import (
	"fmt"
	"math"
	"time"
)

// program is the process of the trace that devices are not in.
const program = "program"

// lanes are the places of a file, by process and group. They get their names when they are first used.
type lanes struct {
	file      *file
	processes map[string]int
	groups    map[groupKey]*group
	threads   int
	caches    map[string]int // how many have counters, by process
}

type groupKey struct{ process, name string }

// group is lanes of one name: as many as spans of it overlap.
type group struct {
	lanes   *lanes
	process int
	name    string
	list    []lane
	ends    []time.Duration // of the last spans

	ended time.Duration // the last one that queued placed, by its own clock
}

// of is a group of lanes.
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

// fixed is the lane i of the group, made with those before it.
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

// counters is the lane of another cache's counters, and what is behind their names: viewers tell counters of a process apart by name.
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

// free is the first lane whose spans have all ended by then, for a span. Those of one lane thus never overlap, though they come in any order.
func (g *group) free(from, to time.Duration) lane {
	i := 0
	for i < len(g.ends) && g.ends[i] > from {
		i++
	}
	at := g.fixed(i)
	g.ends[i] = max(from, to)
	return at
}

// enter takes the first lane on which all spans have ended by then, until leave.
func (g *group) enter(from time.Duration) (place int, at lane) {
	for place < len(g.ends) && g.ends[place] > from {
		place++
	}
	at = g.fixed(place)
	g.ends[place] = math.MaxInt64
	return place, at
}

// leave gives a lane of enter back.
func (g *group) leave(place int, to time.Duration) { g.ends[place] = to }

// shortest is the least that a span of a stream takes: an arrow can't end in one of no length.
const shortest = time.Nanosecond

// queued is the one lane of a stream, which does one thing after the other, and where a span of it stands. It began at own by a clock of
// its own, by which it can't have begun before the one before it ended. If the two overlap only among the host's times, it is moved: how
// long it took is known better than when it was.
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
