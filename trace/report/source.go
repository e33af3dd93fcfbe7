package report

import (
	"fmt"

	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/trace"
)

// source is the known data of one device's memory, from a recording or a cache.
type source struct {
	name    string // of the file or the program
	device  string
	conf    string // the option string
	sizing  sizing
	entries []entry
	spans   []span // of steps
	marks   []span // of other named stretches
	// final are the segments at the end; nil: unknown.
	final    []finalSegment
	profiles []profile
	owners   *owners
	notes    []string
	limit    int64     // of the cache's reserved memory; 0: none or unknown
	total    int64     // the device's memory; 0: unknown
	run      [2]int64  // the first and the last profiled step; 0, 0: none
	began    bool      // the recording began when memory was in use
	shortage *shortage // the failed request that the page is about; nil: none
	failing  int64     // its step, whose blocks are not left behind; 0: none
}

// entry is one event, in the recording's order.
type entry struct {
	action    recording.Action
	addr      uint64
	requested int64 // bytes; of segments, the driver's
	size      int64 // bytes of the block; 0: unknown
	stream    uint64
	time      int64 // ns since 1970; 0: unknown
	owner     int32
	step      int64
}

// span is a stretch of entries with a name: from is the first entry in it, to the first one after
// it.
type span struct {
	name     string
	step     int64
	from, to int32
	failed   bool
	// Figures of a step from a live program; -1: unknown.
	h2d, d2h, hostTime, deviceTime int64
	graphs                         int64 // bytes that graphs held at its end; 0: none, or unknown
	// late is the program's own profile of a step whose beginning the history has forgotten; else
	// nil.
	late *trace.StepProfile
}

// finalSegment is a segment at the end, with its blocks by address.
type finalSegment struct {
	addr   uint64
	size   int64
	stream uint64
	mapped bool // part of an expandable segment
	blocks []finalBlock
}

// finalBlock is a block at the end that is in use or waits for a stream.
type finalBlock struct {
	addr            uint64
	size, requested int64
	pending         bool
	owner           int32
	step            int64
}

// checkFinal checks the sizes of the segments at the end, which readers don't check. Entries are
// checked when they are read.
func (s *source) checkFinal() error {
	for _, seg := range s.final {
		if seg.size < 0 || seg.size > maxBytes {
			return fmt.Errorf("a segment at the end has %d bytes", seg.size)
		}
		for _, b := range seg.blocks {
			if b.size < 0 || b.size > maxBytes || b.requested < 0 || b.requested > b.size {
				return fmt.Errorf("a block at the end has %d bytes, of which %d were requested", b.size, b.requested)
			}
		}
	}
	return nil
}

// profile is the holders of the memory at a moment. It is the cache's own, even if the entries lack
// the moment.
type profile struct {
	name                                string
	allocated, active, graphs, reserved int64
	holdings                            []holding
}

// holding is the blocks of one owner and size.
type holding struct {
	owner  int32
	step   int64
	size   int64
	blocks int64
	bytes  int64
}
