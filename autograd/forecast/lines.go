package forecast

import (
	"cmp"
	"runtime"
	"slices"

	"github.com/cistern-ml/cistern/internal/callframe"
	"github.com/cistern-ml/cistern/memcache"
)

// lines returns the line whose allocation reached the second step's peak, and the lines that hold
// memory at that moment.
func (l *log) lines() (at Line, all []Line) {
	var last, reached, moment *memcache.HistoryEntry // moment: the entry of reached, or the step's start
	var bytes, peak int64
	l.walk(func(e *memcache.HistoryEntry, _ map[uint64]memcache.HistoryEntry, second bool) {
		switch e.Action {
		case memcache.ActionAlloc:
			bytes, last = bytes+e.Block, e
		case memcache.ActionFreeRequested:
			bytes -= e.Block
		}
		if second && bytes > peak {
			peak, reached, moment = bytes, last, e
		}
	})
	if reached == nil {
		return at, nil
	}
	sums := make(map[Line]Line)
	l.walk(func(e *memcache.HistoryEntry, live map[uint64]memcache.HistoryEntry, _ bool) {
		if e != moment {
			return
		}
		for _, b := range live {
			line := lineOf(b.Stack)
			sum := sums[line]
			sum.Bytes += b.Block
			sum.Blocks++
			sums[line] = sum
		}
	})
	for line, sum := range sums {
		line.Bytes, line.Blocks = sum.Bytes, sum.Blocks
		all = append(all, line)
	}
	slices.SortFunc(all, func(a, b Line) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Function, b.Function))
	})
	at = lineOf(reached.Stack)
	at.Bytes, at.Blocks = reached.Block, 1
	return at, all
}

// lineOf is the innermost line of the program in a stack or, without one, of this module.
func lineOf(stack []uintptr) Line {
	var calls []runtime.Frame
	for _, pc := range stack {
		if f, ok := callframe.Of(pc); ok {
			calls = append(calls, f)
		}
	}
	calls = callframe.FromUser(calls, func(f runtime.Frame) (string, string) { return f.Function, f.File })
	if len(calls) == 0 {
		return Line{Function: callframe.Unknown}
	}
	return Line{Function: calls[0].Function, File: calls[0].File, Line: calls[0].Line}
}
