package memcache

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
)

// What happens when there is no memory. The cache itself gives back all it can before (allocGrowing); then reclaimers, which
// know what the program can do without, are asked one after the other; then the request fails with an error that says
// where the memory is. The device stays usable after it, and so does the cache.

// ErrOutOfMemory says that the device, or the cache's limit, has too little free memory. The error is an
// [*OutOfMemoryError].
var ErrOutOfMemory = errors.New("out of memory")

// OutOfMemoryError is a failed allocation, with the figures that PyTorch's OutOfMemoryError gives. All are
// bytes.
type OutOfMemoryError struct {
	Requested int64  // what the caller asked for
	Segment   int64  // what the driver was asked for
	Device    string // the device's name
	Total     int64  // the device's memory
	Free      int64  // the driver's free memory
	Limit     int64  // the cache's limit; -1: none
	Allocated int64  // blocks handed out
	Pending   int64  // blocks freed, and waiting for a recorded stream
	Reserved  int64  // segments held from the driver
	Largest   int64  // the largest free block of the request's pool and stream

	// PrivatePools are the free blocks of private pools, of which default requests get none; PyTorch's
	// message counts them as allocated.
	PrivatePools int64

	// Label says what the memory was for; Holders are those who hold the most, by module and category, if anything has a
	// label. They are looked up when the request is given up, a moment after the figures above: what other goroutines
	// allocate or free meanwhile makes a difference.
	Label   Label
	Holders []Share

	// Err is the driver's error; nil if the limit or the request's size was in the way.
	Err error

	tooLarge bool
}

// Error tells what was asked, what there is, and where the rest went.
func (e *OutOfMemoryError) Error() string {
	var s strings.Builder
	fmt.Fprintf(&s, "memcache: out of memory on %s: ", e.Device)
	if e.tooLarge {
		fmt.Fprintf(&s, "%d bytes are asked for, and no device has 1 EiB", e.Requested)
		return s.String()
	}
	if e.Label != (Label{}) {
		fmt.Fprintf(&s, "%s asks for %s", e.Label, formatBytes(e.Requested))
	} else {
		fmt.Fprintf(&s, "%s are asked for", formatBytes(e.Requested))
	}
	fmt.Fprintf(&s, " (a segment of %s)", formatBytes(e.Segment))
	fmt.Fprintf(&s, "; the device has %s, of which %s are free", formatBytes(e.Total), formatBytes(e.Free))
	if e.Limit >= 0 {
		fmt.Fprintf(&s, "; the cache may reserve %s", formatBytes(e.Limit))
	}
	fmt.Fprintf(&s, "; %s are reserved: %s allocated, %s freed but in use by a recorded stream, %s free",
		formatBytes(e.Reserved), formatBytes(e.Allocated), formatBytes(e.Pending), formatBytes(e.Reserved-e.Allocated-e.Pending))
	if e.PrivatePools > 0 {
		fmt.Fprintf(&s, ", of which %s belong to private pools", formatBytes(e.PrivatePools))
	}
	fmt.Fprintf(&s, " (the largest free block of this pool and stream has %s)", formatBytes(e.Largest))
	for i, h := range e.Holders {
		fmt.Fprintf(&s, "%s%s holds %s", map[bool]string{true: "; ", false: ", "}[i == 0], h.Name, formatBytes(h.Bytes))
	}
	return s.String()
}

// Unwrap returns ErrOutOfMemory and the driver's error, if there is one.
func (e *OutOfMemoryError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrOutOfMemory}
	}
	return []error{ErrOutOfMemory, e.Err}
}

// outOfMemory is the error of a request that found no memory, with the figures of this moment. The growth lock is held, and
// no other.
func (g *grower) outOfMemory(r *request, cause error) error {
	free, total, err := g.dev.MemInfo()
	if err != nil {
		return fmt.Errorf("memcache: out of memory for %s, and no figures: %w", formatBytes(r.Requested), err)
	}
	// The driver was asked before the shards were locked. Blocks are active from their hand-out until nothing uses them any
	// more, so that what is active and not allocated is pending.
	g.shards.lockAll()
	defer g.shards.unlockAll()
	t := g.ledger.sumStats()
	e := &OutOfMemoryError{
		Requested: r.Requested, Segment: r.segmentBytes, Device: g.dev.Name(), Total: total, Free: free, Limit: -1,
		Allocated: t.AllocatedBytes.All.Current,
		Pending:   t.ActiveBytes.All.Current - t.AllocatedBytes.All.Current,
		Reserved:  t.ReservedBytes.All.Current,
		Err:       cause,
	}
	if g.ledger.limited() {
		e.Limit = g.ledger.limit
	}
	e.Label = r.label.value()
	e.Largest = r.shard.arena.Largest(&r.Want)
	for _, s := range g.shards.list() {
		e.PrivatePools += s.arena.PrivateFree()
	}
	return e
}

// mostHolders is how many an error names.
const mostHolders = 3

// nameHolders adds those who hold the most to the error of a request that fails for good. Most errors of a cache that is
// full are not told: after a flush or a reclaimer the request is served. No lock is held.
func (l *ledger) nameHolders(err error) {
	var oom *OutOfMemoryError
	if errors.As(err, &oom) {
		oom.Holders = l.holders()
	}
}

// holders are those who hold the most; nil if nothing has a label.
func (l *ledger) holders() []Share {
	p := l.profile()
	if !slices.ContainsFunc(p.Holdings, func(h Holding) bool { return h.Label != (Label{}) }) {
		return nil
	}
	shares := p.Sum(func(h Holding) string { return Label{Module: h.Module, Category: h.Category}.String() })
	return shares[:min(len(shares), mostHolders)]
}

// oom records a request that failed. shards.mu is held.
func (l *historyLog) oom(r *request, err error) {
	h := l.Load()
	var oom *OutOfMemoryError
	if h != nil && errors.As(err, &oom) {
		h.add(&HistoryEntry{Action: ActionOOM, Size: r.Bytes, Stream: r.shard.id, Free: oom.Free, Label: r.label.value(), Stack: r.stack})
	}
}

// reclaimer is a registered function; its address is what tells registrations apart.
type reclaimer struct {
	free func(ctx context.Context, need int64) (freed int64)
}

// reclaimers are those of a cache, in the order in which they were registered.
type reclaimers struct {
	mu   sync.Mutex // a leaf
	list []*reclaimer
}

// add registers one; remove ends that.
func (l *reclaimers) add(r *reclaimer) (remove func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, r)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		// Failing requests go through the list as it was when they failed, so it is replaced.
		l.list = slices.DeleteFunc(slices.Clone(l.list), func(o *reclaimer) bool { return o == r })
	}
}

// OnPressure registers a function that is asked, after everything else failed, to free blocks so that a
// segment of need bytes fits. It returns the bytes that it freed. If that is more than 0 the allocation is
// tried again and, if it fails again, the function is asked again: it may free one block a call, and returns 0 when it has
// none left. Then the next function is asked, in the order in which they were registered. It runs on the goroutine of the
// allocation, without locks, and may use the cache, but an allocation of its own that fails asks it again. remove ends the
// registration, and may be called from the function.
func (c *Cache) OnPressure(f func(ctx context.Context, need int64) (freed int64)) (remove func()) {
	return c.reclaimers.add(&reclaimer{free: f})
}

// pressure is how far a request that found no memory has come with the reclaimers.
type pressure struct {
	asked    bool
	left     []*reclaimer // of those that were registered when it first failed; the first one may have more
	reported int64        // bytes that the first of left says it freed
}

// ask asks the reclaimers until one frees something, and reports whether one did: then the request is worth another
// try. One that says that it freed more than there is altogether is not believed any more, so that a request ends
// whatever reclaimers say. No lock is held while one runs.
func (l *reclaimers) ask(ctx context.Context, need, total int64, p *pressure) bool {
	// A reclaimer that is registered while the request fails is not asked: the list could go on for ever.
	if !p.asked {
		l.mu.Lock()
		p.asked, p.left = true, l.list
		l.mu.Unlock()
	}
	for ; len(p.left) > 0 && ctx.Err() == nil; p.left, p.reported = p.left[1:], 0 {
		r := p.left[0]
		if p.reported > total || !l.has(r) {
			continue
		}
		if freed := r.free(ctx, need); freed > 0 {
			p.reported += min(freed, math.MaxInt64-p.reported)
			return true
		}
	}
	return false
}

// has reports whether a reclaimer was not removed meanwhile.
func (l *reclaimers) has(r *reclaimer) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.list, r)
}
