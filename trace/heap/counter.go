package heap

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/cistern-ml/cistern/memcache"
)

// A cache has no totals of allocations by owner: one for each label and size would cost every hit,
// and labels contain steps, so their number is unbounded. A program that wants these totals counts
// with an observer, which ignores the steps.

// Counter counts the allocations of caches by label, as the observer of [memcache.Config]. The zero
// Counter is ready for use; it must not be copied after its first use. It is safe for concurrent
// use. Counting adds some 350 ns to an allocation, and nothing on the Go heap once its owner is
// known.
//
// A Counter keeps a total for each label, size and, with Stacks, call stack, which takes a few
// hundred bytes each for its lifetime. If a program's own tags have an unbounded number of values,
// such as the number of a request, DropTags bounds that.
type Counter struct {
	// Stacks separates call stacks, as RecordHistory does for blocks, and costs about 2 µs an
	// allocation more. It must be set before the first use.
	Stacks bool
	// DropTags counts labels without the program's own tags. It must be set before the first use.
	DropTags bool

	mu     sync.Mutex
	totals []memcache.Holding
	at     map[totalKey]int // in totals
	stacks map[string]int   // their numbers by their program counters, from 1 on
	free   *countedAt       // a list of unused ones
}

// totalKey identifies a total; stack is 0 without one.
type totalKey struct {
	label memcache.Label
	size  int64
	stack int
}

// Start begins to observe an allocation, which its End counts. It ignores other operations.
func (c *Counter) Start(ctx context.Context, op memcache.Op) (context.Context, memcache.Operation) {
	if op != memcache.OpAlloc {
		return ctx, nil
	}
	if !c.Stacks {
		return ctx, (*counted)(c)
	}
	c.mu.Lock()
	o := c.free
	if o != nil {
		c.free = o.next
	}
	c.mu.Unlock()
	if o == nil {
		o = &countedAt{counter: c}
	}
	o.n = runtime.Callers(2, o.stack[:])
	return ctx, o
}

// counted is an allocation without a stack. It is the counter itself, so that it needs no memory.
type counted Counter

func (c *counted) End(info memcache.OpInfo) {
	(*Counter)(c).mu.Lock()
	defer (*Counter)(c).mu.Unlock()
	(*Counter)(c).count(&info, nil)
}

// countedAt is an allocation with its stack. It is reused.
type countedAt struct {
	counter *Counter
	next    *countedAt // of the free ones
	n       int
	stack   [64]uintptr
	key     [64 * 8]byte
}

func (o *countedAt) End(info memcache.OpInfo) {
	c := o.counter
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count(&info, o)
	o.next, c.free = c.free, o
}

// count counts an allocation. c.mu is held.
func (c *Counter) count(info *memcache.OpInfo, from *countedAt) {
	if info.Err != nil {
		return
	}
	key := totalKey{label: info.Label, size: info.Bytes}
	key.label.Step = 0
	if c.DropTags {
		key.label.Tags = ""
	}
	if from != nil {
		key.stack = c.number(from)
	}
	i, ok := c.at[key]
	if !ok {
		if c.at == nil {
			c.at = make(map[totalKey]int)
		}
		i = len(c.totals)
		h := memcache.Holding{Label: key.label, Size: info.Bytes}
		if from != nil {
			h.Stack = slices.Clone(from.stack[:from.n])
		}
		c.at[key], c.totals = i, append(c.totals, h)
	}
	h := &c.totals[i]
	h.Blocks++
	h.Bytes += info.Bytes
	h.Requested += info.Requested
}

// number returns the number of a stack. c.mu is held.
func (c *Counter) number(from *countedAt) int {
	key := from.key[:0]
	for _, pc := range from.stack[:from.n] {
		key = binary.LittleEndian.AppendUint64(key, uint64(pc))
	}
	n, ok := c.stacks[string(key)]
	if !ok {
		if c.stacks == nil {
			c.stacks = make(map[string]int)
		}
		n = len(c.stacks) + 1
		c.stacks[string(key)] = n
	}
	return n
}

// Holdings returns the present totals for [Heap.Allocated], never nil: by label without its step,
// block size and, with Stacks, call stack. They add up to the allocations of the observed caches.
// They are in the order of their first allocations.
func (c *Counter) Holdings() []memcache.Holding {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]memcache.Holding{}, c.totals...)
}

// String returns a text such as "counter of 12 allocations of 3 kinds".
func (c *Counter) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, h := range c.totals {
		n += h.Blocks
	}
	return fmt.Sprintf("counter of %d allocations of %d kinds", n, len(c.totals))
}
