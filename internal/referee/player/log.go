package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/memcache"
)

// log is what one call did: driver calls, and what an observer was told.
type log struct {
	lines []line
	depth int // operations that were started and not ended
	bad   error
}

// line is one thing that a call did. Those that give memory back may stand in any order among each other.
type line struct {
	text   string
	giving bool
}

func (l *log) add(format string, args ...any) {
	l.lines = append(l.lines, line{text: fmt.Sprintf(format, args...)})
}

// driver notes a call of the driver that succeeded. Waits, as events, are the cache's own matter.
func (l *log) driver(c null.Call) {
	switch c.Op {
	case null.OpSynchronize:
	case null.OpFree, null.OpUnmap, null.OpUnreserve:
		l.lines = append(l.lines, line{fmt.Sprintf("%s %#x %d", c.Op, c.Ptr, c.Bytes), true})
	default:
		l.add("%s %#x %d", c.Op, c.Ptr, c.Bytes)
	}
}

// Start is of memcache.Observer.
func (l *log) Start(ctx context.Context, op memcache.Op) (context.Context, memcache.Operation) {
	l.depth++
	if op != memcache.OpDriverFree {
		l.add("start %s", op)
	}
	return ctx, l
}

// End is of memcache.Operation. What numbers caches and shards is the cache's own matter.
func (l *log) End(i memcache.OpInfo) {
	if l.depth--; l.depth < 0 {
		l.bad = fmt.Errorf("an operation %s was ended that was not started", i.Op)
	}
	l.lines = append(l.lines, line{fmt.Sprintf("end %s %s %d %d %d %d %s %t %v %s", i.Op, i.Device, i.Stream, i.Serial, i.Requested, i.Bytes, i.Pool, i.Hit, i.Label, told(i.Err)), i.Op == memcache.OpDriverFree})
}

// print prints the call's lines, and forgets them.
func (l *log) print(w io.Writer) {
	for i := 0; i < len(l.lines); i++ {
		n := i
		for n < len(l.lines) && l.lines[n].giving {
			n++
		}
		slices.SortFunc(l.lines[i:n], func(a, b line) int { return strings.Compare(a.text, b.text) })
		for ; i < n; i++ {
			fmt.Fprintln(w, " "+l.lines[i].text)
		}
		if i < len(l.lines) {
			fmt.Fprintln(w, " "+l.lines[i].text)
		}
	}
	l.lines = l.lines[:0]
}

// wrong is what the player itself finds wrong after a call.
func (l *log) wrong() error {
	if l.bad == nil && l.depth != 0 {
		return fmt.Errorf("%d operations were started and not ended", l.depth)
	}
	return l.bad
}
