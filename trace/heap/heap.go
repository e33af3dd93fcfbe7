package heap

import (
	"fmt"
	"io"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// ErrInvalid is the class of errors about wrong arguments, for errors.Is. It is
// [device.ErrInvalid].
var ErrInvalid = device.ErrInvalid

// Heap is the contents of a file. A nil field leaves its values 0.
type Heap struct {
	Device string            // the device's name, a tag of each sample; "": no tag
	Time   time.Time         // of InUse; zero: unknown
	InUse  *memcache.Profile // of Cache.Profile
	// Graphs is the memory of graphs, of Cache.GraphProfile: samples of InUse with the tag
	// state=graph, omitted without InUse.
	Graphs []memcache.GraphHolding
	Peak   *memcache.Profile // of Cache.PeakProfile or Scope.PeakProfile
	// Allocated is the total of allocations, such as [Counter.Holdings]: Blocks and Bytes include
	// those that were freed.
	Allocated []memcache.Holding
}

// Of returns a cache's present heap, with the memory of graphs and its peak, each as of a slightly
// different moment. Requests wait while the blocks are walked, three times. For a nil cache it
// returns an empty Heap.
func Of(c *memcache.Cache) Heap {
	if c == nil {
		return Heap{}
	}
	inUse, peak := c.Profile(), c.PeakProfile()
	return Heap{Device: c.Device().Name(), Time: time.Now(), InUse: &inUse, Graphs: c.GraphProfile().Holdings, Peak: &peak}
}

// Write writes the heap as a compressed profile. A heap that has none of InUse, Peak and
// Allocated is an error that wraps [ErrInvalid].
func (h Heap) Write(w io.Writer) error {
	if w == nil {
		return fmt.Errorf("heap: Write: %w: the writer is nil", ErrInvalid)
	}
	if h.InUse == nil && h.Peak == nil && h.Allocated == nil {
		return fmt.Errorf("heap: Write: %w: InUse, Peak and Allocated are all nil; Of(cache) sets the first two", ErrInvalid)
	}
	b := newBuilder(h.Device)
	b.frames.modulesOf(h.Allocated)
	for _, p := range []*memcache.Profile{h.Peak, h.InUse} {
		if p != nil {
			b.frames.modulesOf(p.Holdings)
		}
	}
	b.add(pairAlloc, h.Allocated)
	p := b.profile
	p.DefaultSampleType = "alloc_space"
	if h.Peak != nil {
		b.add(pairPeak, h.Peak.Holdings)
		p.DefaultSampleType = "peak_space"
	}
	if h.InUse != nil {
		b.add(pairInUse, h.InUse.Holdings)
		b.addGraphs(h.Graphs)
		p.DefaultSampleType = "inuse_space"
	}
	b.comment("in use", h.InUse)
	b.comment("at the peak", h.Peak)
	if !h.Time.IsZero() {
		p.TimeNanos = h.Time.UnixNano()
	}
	if err := p.CheckValid(); err != nil {
		return fmt.Errorf("heap: Write: %w", err)
	}
	if err := p.Write(w); err != nil {
		return fmt.Errorf("heap: Write: %w", err)
	}
	return nil
}

// comment adds the figures of a moment that samples don't have.
func (b *builder) comment(when string, p *memcache.Profile) {
	if p == nil {
		return
	}
	b.profile.Comments = append(b.profile.Comments, fmt.Sprintf("%s: %d bytes allocated, %d active, %d reserved; %d of them held by graphs, %d free",
		when, p.Allocated, p.Active, p.Reserved, p.Graphs, p.Reserved-p.Active-p.Graphs))
}
