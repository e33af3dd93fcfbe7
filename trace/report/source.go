package report

import (
	"github.com/cistern-ml/cistern/internal/recording"
)

// source is what is known of one device's memory, from wherever it comes.
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
}

// entry is one thing that happened, in the recording's order.
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

// span is a stretch of entries with a name: from is the first entry in it, to the first one behind it.
type span struct {
	name     string
	step     int64
	from, to int32
	failed   bool
	// What a live program knows of the step besides; -1: unknown.
	h2d, d2h, hostTime, deviceTime int64
}

// finalSegment is a segment at the end, with its blocks by address.
type finalSegment struct {
	addr   uint64
	size   int64
	stream uint64
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

// profile is who held the memory at a moment that the cache knows and the entries may not.
type profile struct {
	name                        string
	allocated, active, reserved int64
	holdings                    []holding
}

// holding is the blocks of one owner and size.
type holding struct {
	owner  int32
	step   int64
	size   int64
	blocks int64
	bytes  int64
}
