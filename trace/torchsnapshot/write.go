package torchsnapshot

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// ErrInvalid is the class of errors about wrong arguments, for errors.Is. It is
// [device.ErrInvalid].
var ErrInvalid = device.ErrInvalid

// State is the history and the present state of a cache.
type State struct {
	Snapshot memcache.Snapshot
	Config   memcache.Config // the cache's configuration
	// Annotations are spans of the program, such as its steps, in any order.
	Annotations []Annotation
}

// Annotation is a named span of the program, for external_annotations.
type Annotation struct {
	Name       string
	Start, End time.Time
}

// Write writes states as one file. In the viewers the first state is device 0, the next one device
// 1, and so on. A file has one set of options, so the configurations must be the same, except for
// the Observer. An error of w is returned. Memory does not grow with the number of entries, only
// with labels and call sites.
func Write(w io.Writer, states ...State) error {
	if w == nil {
		return fmt.Errorf("torchsnapshot: Write: %w: the writer is nil", ErrInvalid)
	}
	if len(states) == 0 {
		return fmt.Errorf("torchsnapshot: Write: %w: there is no state to write", ErrInvalid)
	}
	options := states[0].Config.Options()
	for i, s := range states {
		if o := s.Config.Options(); o != options {
			return fmt.Errorf("torchsnapshot: Write: %w: cache 0 has the options %q and cache %d %q; a file has one set, so write a file for each",
				ErrInvalid, options, i, o)
		}
	}
	p := newPickler(w)
	s := &snapshotWriter{pickler: p, frames: newFrames(p)}
	p.dict(func() {
		p.key("segments").list(segments(states), s.nextSegment(states))
		p.key("device_traces").list(len(states), func(i int) { s.trace(states[i].Snapshot) })
		p.key("allocator_settings")
		settings(p, states[0].Config)
		p.key("external_annotations")
		annotations(p, states)
	})
	if err := p.flush(); err != nil {
		return fmt.Errorf("torchsnapshot: Write: %w", err)
	}
	return nil
}

func segments(states []State) (n int) {
	for _, s := range states {
		n += len(s.Snapshot.Segments)
	}
	return n
}

// snapshotWriter writes segments and entries.
type snapshotWriter struct {
	*pickler
	frames *frames
}

// nextSegment writes the segments of all states, one a call.
func (s *snapshotWriter) nextSegment(states []State) func(int) {
	dev, at := -1, 0
	var grown map[device.Ptr][]uintptr
	return func(int) {
		for dev < 0 || at == len(states[dev].Snapshot.Segments) {
			dev, at = dev+1, 0
			grown = segmentStacks(states[dev].Snapshot.History)
		}
		g := &states[dev].Snapshot.Segments[at]
		s.segment(dev, g, grown[g.Address])
		at++
	}
}

// segmentStacks returns the call stacks, by address, that requested the segments from the driver,
// as far as the history has them.
func segmentStacks(history []memcache.HistoryEntry) map[device.Ptr][]uintptr {
	m := make(map[device.Ptr][]uintptr)
	for i := range history {
		if e := &history[i]; e.Action == memcache.ActionSegmentAlloc || e.Action == memcache.ActionSegmentMap {
			m[e.Address] = e.Stack
		}
	}
	return m
}

// segment writes a segment that was requested at stack.
func (s *snapshotWriter) segment(dev int, g *memcache.SegmentSnapshot, stack []uintptr) {
	s.dict(func() {
		s.key("device").int(int64(dev))
		s.key("address").uint(uint64(g.Address))
		s.key("total_size").int(g.TotalSize)
		s.key("allocated_size").int(g.AllocatedSize)
		s.key("active_size").int(g.ActiveSize)
		s.key("requested_size").int(g.RequestedSize)
		s.key("stream").uint(g.Stream)
		s.key("segment_type").name(g.Pool)
		s.key("segment_pool_id").uint(g.PoolID[0])
		s.uint(g.PoolID[1])
		s.op(opTuple2)
		s.key("is_expandable").bool(g.Expandable)
		s.key("frames")
		s.frames.write(stack, memcache.Label{})
		s.key("blocks").list(len(g.Blocks), func(i int) { s.block(&g.Blocks[i]) })
	})
}

func (s *snapshotWriter) block(b *memcache.BlockSnapshot) {
	s.dict(func() {
		s.key("address").uint(uint64(b.Address))
		s.key("size").int(b.Size)
		s.key("requested_size").int(b.RequestedSize)
		s.key("state").name(string(b.State))
		s.key("frames")
		if b.State == memcache.BlockInactive {
			s.list(0, nil)
			return
		}
		s.frames.write(b.Stack, b.Label)
	})
}

// trace writes the history of a cache.
func (s *snapshotWriter) trace(snap memcache.Snapshot) {
	h := historyOf(snap.History)
	n := h.known
	if h.colours == coloursWithoutUnknown {
		n++
	}
	at := 0
	s.list(n, func(int) {
		for at < len(snap.History) && !known(snap.History[at].Action) {
			at++
		}
		if at < len(snap.History) {
			e := &snap.History[at]
			s.entry(e, h.label(e), h.colours != coloursNone)
			at++
			return
		}
		// memory_viz fails on a file with categories of which none is "unknown". The entry of this
		// snapshot has it.
		s.entry(&memcache.HistoryEntry{Action: memcache.ActionSnapshot, Size: active(snap), Time: time.Now()}, memcache.Label{}, true)
	})
}

// active returns the bytes of the blocks that are allocated or pending.
func active(s memcache.Snapshot) (bytes int64) {
	for i := range s.Segments {
		bytes += s.Segments[i].ActiveSize
	}
	return bytes
}

func (s *snapshotWriter) entry(e *memcache.HistoryEntry, l memcache.Label, coloured bool) {
	s.dict(func() {
		s.key("action").name(string(e.Action))
		if e.Action == memcache.ActionOOM {
			s.key("device_free").int(e.Free)
		} else {
			s.key("addr").uint(uint64(e.Address))
		}
		s.key("size").int(e.Size)
		s.key("stream").uint(e.Stream)
		s.placed(e)
		s.key("time_us").int(e.Time.UnixMicro())
		s.key("compile_context").name("N/A")
		s.key("user_metadata").name(s.frames.label(l).metadata)
		if len(e.Stack) > 0 || l != (memcache.Label{}) {
			s.key("frames")
			s.frames.write(e.Stack, l)
		}
		if coloured {
			s.key("category").name(colour(l))
		}
	})
}

// placed writes the fields that PyTorch's entries lack and a replay of a late history needs: the
// size of a freed block, and the private pool.
func (s *snapshotWriter) placed(e *memcache.HistoryEntry) {
	if e.Action == memcache.ActionFreeRequested || e.Action == memcache.ActionFreeCompleted {
		s.key("block_size").int(e.Block)
	}
	if e.Pool != (memcache.PoolID{}) {
		s.key("pool_id").uint(e.Pool[0])
		s.uint(e.Pool[1])
		s.op(opTuple2)
	}
}

// metadata returns a label as a text: "encoder.0 (activation) in step 17; tenant=a".
func metadata(l memcache.Label) string {
	if l == (memcache.Label{}) {
		return ""
	}
	text := l.String()
	if l.Tags != "" {
		text += "; " + strings.ReplaceAll(l.Tags, "\n", "; ")
	}
	return text
}

func annotations(p *pickler, states []State) {
	n := 0
	for _, s := range states {
		n += 2 * len(s.Annotations)
	}
	dev, at := 0, 0
	p.list(n, func(int) {
		for at == 2*len(states[dev].Annotations) {
			dev, at = dev+1, 0
		}
		a := states[dev].Annotations[at/2]
		stage, when := "START", a.Start
		if at%2 == 1 {
			stage, when = "END", a.End
		}
		at++
		p.dict(func() {
			p.key("name").text(a.Name)
			p.key("stage").name(stage)
			p.key("device").int(int64(dev))
			p.key("time_us").int(when.UnixMicro())
		})
	})
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }
