package heap

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"github.com/cistern-ml/cistern/memcache"
)

// A cache counts what it hands out, but not by owner: a total for each label and size would cost every hit, and steps make
// labels without end. A program that wants to know counts with an observer, and without the steps.

// Counter counts what caches hand out, with the labels of that moment, as the observer of [memcache.Config]. The zero Counter is ready for use. Counting costs
// an allocation some 100 ns; it is safe for concurrent use.
type Counter struct {
	// Stacks keeps call stacks apart, at about 1 µs an allocation, as RecordHistory's do for blocks. It must be set before
	// the first use.
	Stacks bool

	mu     sync.Mutex
	totals []memcache.Holding
	at     map[sampleKey]int // in totals
}

// Start counts an allocation when it ends; nothing else.
func (c *Counter) Start(ctx context.Context, op memcache.Op) (context.Context, memcache.Operation) {
	if op != memcache.OpAlloc {
		return ctx, nil
	}
	if !c.Stacks {
		return ctx, (*counted)(c)
	}
	pcs := make([]uintptr, 64)
	return ctx, countedAt{c, pcs[:runtime.Callers(2, pcs)]}
}

// counted is an allocation without a stack: the counter itself, so that none is made.
type counted Counter

func (c *counted) End(info memcache.OpInfo) { (*Counter)(c).count(info, nil) }

type countedAt struct {
	counter *Counter
	stack   []uintptr
}

func (o countedAt) End(info memcache.OpInfo) { o.counter.count(info, o.stack) }

func (c *Counter) count(info memcache.OpInfo, stack []uintptr) {
	if info.Err != nil {
		return
	}
	key := sampleKey{label: info.Label, size: info.Bytes}
	key.label.Step = 0
	if stack != nil {
		key.stack = fmt.Sprint(stack)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i, ok := c.at[key]
	if !ok {
		if c.at == nil {
			c.at = make(map[sampleKey]int)
		}
		i = len(c.totals)
		c.at[key], c.totals = i, append(c.totals, memcache.Holding{Label: key.label, Stack: stack, Size: info.Bytes})
	}
	h := &c.totals[i]
	h.Blocks++
	h.Bytes += info.Bytes
	h.Requested += info.Requested
}

// Holdings are the totals up to now for [Heap.Allocated], never nil: by label, of no step, block size and, with Stacks, call
// stack. They add up to what the observed caches have handed out, and stand in the order of their first allocations.
func (c *Counter) Holdings() []memcache.Holding {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]memcache.Holding{}, c.totals...)
}
