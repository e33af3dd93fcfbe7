package heap

import (
	"fmt"
	"io"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// ErrInvalid is the class of errors about wrong arguments, for errors.Is; it is [device.ErrInvalid].
var ErrInvalid = device.ErrInvalid

// Heap is the contents of a file. A field that is nil has 0 for its values.
type Heap struct {
	Device string            // the device's name, a tag of each sample; "": no tag
	Time   time.Time         // when InUse was true; zero: unknown
	InUse  *memcache.Profile // of Cache.Profile
	// Graphs is what graphs hold, of Cache.GraphProfile: samples of InUse with the tag state=graph,
	// left out without InUse.
	Graphs []memcache.GraphHolding
	Peak   *memcache.Profile // of Cache.PeakProfile or Scope.PeakProfile
	// Allocated is what was handed out in total, such as [Counter.Holdings]: Blocks and Bytes count those that were freed, too.
	Allocated []memcache.Holding
}

// Of is a cache's heap now, with what graphs hold and its peak, each at a moment of its own.
// Requests wait while the blocks are walked, three times. The heap of a nil cache knows nothing.
func Of(c *memcache.Cache) Heap {
	if c == nil {
		return Heap{}
	}
	inUse, peak := c.Profile(), c.PeakProfile()
	return Heap{Device: c.Device().Name(), Time: time.Now(), InUse: &inUse, Graphs: c.GraphProfile().Holdings, Peak: &peak}
}

// Write writes the heap as a compressed profile. A heap that knows nothing is an error that wraps [ErrInvalid].
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

// comment adds the figures of a moment, which samples do not have.
func (b *builder) comment(when string, p *memcache.Profile) {
	if p == nil {
		return
	}
	b.profile.Comments = append(b.profile.Comments, fmt.Sprintf("%s: %d bytes allocated, %d active, %d reserved; %d of them held by graphs, %d free",
		when, p.Allocated, p.Active, p.Reserved, p.Graphs, p.Reserved-p.Active-p.Graphs))
}
