package forecast

import (
	"cmp"
	"maps"
	"slices"

	"github.com/cistern-ml/cistern/internal/callframe"
	"github.com/cistern-ml/cistern/memcache"
)

// peak is the moment of the most allocated bytes in the second step.
type peak struct {
	line Line // the line whose allocation reached it
	live []memcache.HistoryEntry
}

func (l *log) peak() (p peak) {
	var last, reached, moment *memcache.HistoryEntry // moment: reached's, or the step's start
	var bytes, most int64
	l.walk(func(e *memcache.HistoryEntry, _ map[uint64]memcache.HistoryEntry, second bool) {
		switch e.Action {
		case memcache.ActionAlloc:
			bytes, last = bytes+e.Block, e
		case memcache.ActionFreeRequested:
			bytes -= e.Block
		}
		if second && bytes > most {
			most, reached, moment = bytes, last, e
		}
	})
	if reached == nil {
		return p
	}
	l.walk(func(e *memcache.HistoryEntry, live map[uint64]memcache.HistoryEntry, _ bool) {
		if e == moment {
			p.live = slices.Collect(maps.Values(live))
		}
	})
	p.line = lineOf(reached.Stack)
	p.line.Bytes, p.line.Blocks = reached.Block, 1
	return p
}

// lines returns the lines that hold the memory, the largest first.
func (p peak) lines() (all []Line) {
	sums := make(map[Line]Line)
	for _, b := range p.live {
		line := lineOf(b.Stack)
		sum := sums[line]
		sum.Bytes += b.Block
		sum.Blocks++
		sums[line] = sum
	}
	for line, sum := range sums {
		line.Bytes, line.Blocks = sum.Bytes, sum.Blocks
		all = append(all, line)
	}
	slices.SortFunc(all, func(a, b Line) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Function, b.Function))
	})
	return all
}

// profile returns the labels that hold the memory.
func (p peak) profile() (all memcache.Profile) {
	for _, b := range p.live {
		all.Allocated += b.Block
		all.Holdings = append(all.Holdings, memcache.Holding{Label: b.Label, Bytes: b.Block, Blocks: 1})
	}
	return all
}

// lineOf returns the innermost line of the program in a stack or, without one, of this module.
func lineOf(stack []uintptr) Line {
	f := callframe.Line(stack)
	return Line{Function: f.Function, File: f.File, Line: f.Line}
}
