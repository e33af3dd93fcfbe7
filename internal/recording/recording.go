// Package recording reads recordings of what PyTorch's caching allocator did, and makes programs of them:
// the calls that its callers made.
//
// Two forms are read, plain or compressed with gzip: JSON lines (a header, then one line for each entry) and
// the pickle that torch.cuda.memory._dump_snapshot writes. Both are hostile until proven otherwise: what is
// read is bounded by [Limits], a pickle may hold nothing but plain values, and every entry is checked.
package recording

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// Recording is what one device's allocator did.
type Recording struct {
	// Name is the file's name, with the device if the file has several.
	Name string
	// Conf is the option string (PYTORCH_CUDA_ALLOC_CONF).
	Conf string
	// Settings are the options in force, if the recording has them apart from the string.
	Settings *Settings
	// TotalMemory is the device's memory in bytes; 0: unknown.
	TotalMemory int64
	// Limit is the memory limit in bytes, 0 for none, if LimitKnown.
	Limit      int64
	LimitKnown bool
	// Stats are the flattened statistics at the end; nil: unknown.
	Stats map[string]int64
	// PrivatePools says that memory at the end belongs to pools of graph captures or MemPools.
	PrivatePools bool
	// Segments is the memory at the end; nil: unknown.
	Segments []Segment
	// Entries are what happened, in order.
	Entries []Entry
}

// Settings are the options that PyTorch's snapshot has in its allocator_settings.
type Settings struct {
	MaxSplitSize               int64 // bytes; -1: no limit
	GarbageCollectionThreshold float64
	ExpandableSegments         bool
	RoundupPower2Divisions     [16]int64 // by power of two, from 1 MiB on
}

// Segment is a segment at the end, or a mapped part of an expandable one. Sizes are bytes.
type Segment struct {
	Address device.Ptr
	Size    int64
	Stream  uint64
	Blocks  []Block
}

// Block is a block of a segment at the end. Sizes are bytes.
type Block struct {
	Address   device.Ptr
	Size      int64
	Requested int64
	State     string
}

// Action is what an entry is about.
type Action uint8

// The actions, in PyTorch's words.
const (
	Alloc Action = iota
	FreeRequested
	FreeCompleted
	SegmentAlloc
	SegmentFree
	SegmentMap
	SegmentUnmap
	OOM
)

var actionNames = [...]string{"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
	"segment_unmap", "oom"}

// ignored are actions of other versions that don't concern the allocator.
var ignored = map[string]bool{"snapshot": true, "annotate": true, "user_defined": true}

var actions = func() map[string]Action {
	m := make(map[string]Action)
	for i, name := range actionNames {
		m[name] = Action(i)
	}
	return m
}()

// String is PyTorch's name of the action.
func (a Action) String() string { return actionNames[a] }

// Driver reports whether the action is a call of the driver.
func (a Action) Driver() bool { return a >= SegmentAlloc && a <= SegmentUnmap }

// Releases reports whether the action gives memory back to the driver.
func (a Action) Releases() bool { return a == SegmentFree || a == SegmentUnmap }

// Entry is one thing that happened.
type Entry struct {
	Action Action
	// Addr is the block's or segment's address; 0 for an oom.
	Addr device.Ptr
	// Size is the request in bytes (of an oom, rounded) or the driver's bytes.
	Size   int64
	Stream uint64
	// Free is the device's free bytes at an oom.
	Free int64
	// Block is the number of the hand-out that an alloc begins and frees end; set by [NewProgram].
	Block int32
}

// String names the action, size and address.
func (e Entry) String() string {
	if e.Action == OOM {
		return fmt.Sprintf("oom of %d bytes", e.Size)
	}
	return fmt.Sprintf("%v of %d bytes at %#x", e.Action, e.Size, e.Addr)
}

// maxSize is beyond what any allocator takes.
const maxSize = 1 << 60

// newEntry checks an entry. ok is false for one that is to be ignored.
func newEntry(action string, addr uint64, size int64, stream uint64) (e Entry, ok bool, err error) {
	a, known := actions[action]
	if !known {
		if ignored[action] {
			return e, false, nil
		}
		return e, false, fmt.Errorf("unknown action %q", clip(action))
	}
	if size <= 0 || size >= maxSize {
		return e, false, fmt.Errorf("%s of %d bytes: sizes are 1 to 2^60-1", action, size)
	}
	e = Entry{Action: a, Size: size, Stream: stream, Block: -1}
	switch {
	case a == OOM:
		e.Free = int64(min(addr, maxSize))
	case addr == 0 || addr >= 1<<63:
		return e, false, fmt.Errorf("%s at the address %#x: addresses are 1 to 2^63-1", action, addr)
	default:
		e.Addr = device.Ptr(addr)
	}
	return e, true, nil
}

// clip keeps text from a file short.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}
