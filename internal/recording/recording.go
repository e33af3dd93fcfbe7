// Package recording reads recordings of what PyTorch's caching allocator or memcache did, and makes programs of
// them: the calls that its callers made.
//
// It reads four forms, plain or compressed with gzip or zstd: JSON lines (a header, then one line
// for each entry), the JSON lines that memcache's programs stream (own.go), the pickle that
// torch.cuda.memory._dump_snapshot writes, and the same values as JSON. Files may be hostile: a budget
// bounds what they cost, a pickle may contain plain values only, and every entry is checked.
package recording

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/budget"
)

// Recording is what one device's allocator did.
type Recording struct {
	// Name is the file's name, with the device if the file has several.
	Name string
	// Conf is the option string (PYTORCH_CUDA_ALLOC_CONF).
	Conf string
	// Options are the option strings of SetOptions, by number.
	Options []string
	// Settings are the options in force, if the recording has them apart from the string.
	Settings *Settings
	// TotalMemory is the device's memory in bytes; 0: unknown.
	TotalMemory int64
	// Limit is the memory limit in bytes, 0 for none, if LimitKnown.
	Limit      int64
	LimitKnown bool
	// Stats are the flattened statistics at the end; nil: unknown.
	Stats map[string]int64
	// PrivatePools reports that some memory belongs to graph captures or MemPools, whose requests are
	// not recorded as such.
	PrivatePools bool
	// Calls says that the entries tell also the calls that concern pools, empty_cache and record_stream; else the callers' part
	// is alloc and free alone.
	Calls bool
	// Pools are PyTorch's IDs of the pools that calls and segments number.
	Pools map[uint64][2]uint64
	// Segments is the memory at the end; nil: unknown.
	Segments []Segment
	// Entries are what happened, in order. A recording of ours that began when memory was in use has that first, as if it
	// had just been allocated: the first Initial entries.
	Entries []Entry
	Initial int
	// Own says that memcache made the recording, and Unfinished that it ends before its program or its Close did.
	Own, Unfinished bool
	// HostMemory says that the device of a recording of ours is host memory, where addresses are scarce.
	HostMemory bool
	// Budget is that of the file; nil: it has no bounds.
	Budget *budget.Budget
	// Notes say what the file has that is left out.
	Notes []string
	// Details are nil unless they were asked for.
	Details *Details

	start   int64 // of our own: microseconds since 1970
	unknown map[string]int
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
	Pool    uint64 // the number of its private pool; 0: the default pool
	Kind    Kind
	Mapped  bool // a part of an expandable segment
	Blocks  []Block
}

// Kind is which blocks a segment is for.
type Kind uint8

// The kinds of segments.
const (
	UnknownKind Kind = iota
	SmallKind
	LargeKind
)

// segmentKind is the kind that a snapshot's segment_type names.
func segmentKind(segmentType string) Kind {
	switch segmentType {
	case "small":
		return SmallKind
	case "large":
		return LargeKind
	}
	return UnknownKind
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
	// What only recordings of memcache have.
	Miss         // no free block serves a request, which goes on with the growth lock
	Flush        // pending frees are waited for, and free memory goes back to the driver
	Reserve      // addresses for an expandable segment; the address is 0 if there were none
	Refused      // the driver has no memory
	EmptyCache   // the end of such a call, which began with a Flush
	Failed       // the end of a request that failed for another reason than memory, or of an empty_cache or trim_to that failed
	StreamClosed // free segments of the entry's stream go to another one
	ResetPeaks   // ResetPeakStats
	ResetTotals  // ResetAccumulatedStats
	Overlap      // for the first time a call began while another one was under way
	SetLimit     // the memory limit is Size from here on, in bytes; 0: none
	SetOptions   // the options are those of the number in Addr from here on, in Recording.Options, without the limit
	Trim         // the end of TrimTo, of Size bytes, which may have begun with a Flush
	// Calls, which only recordings of PyTorch have, with the number of a pool in place of the address. They stand where they were made.
	PoolNew      // a MemPool is made; Size has PoolUseOnOOM and PoolNoSplit
	PoolBegin    // use_mem_pool: the thread's allocations are the pool's from here on
	PoolEnd      // its end
	CaptureBegin // of a graph, into the pool: the allocations of the entry's stream, and of those that fork from it, are the pool's
	CaptureEnd   // its end
	PoolRelease  // a context, a graph or a MemPool of the pool is gone
	EmptyPool    // empty_cache, of the pool or, of number 0, of all
	RecordStream // of the block at the address, on the entry's stream
)

// The flags of PoolNew.
const (
	PoolUseOnOOM = 1
	PoolNoSplit  = 2
)

var actionNames = [...]string{"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
	"segment_unmap", "oom", "miss", "flush", "reserve", "refused", "empty_cache", "failed", "stream_closed", "reset_peaks", "reset_totals", "overlap", "set_limit", "set_options", "trim_to",
	"pool_new", "pool_begin", "pool_end", "capture_begin", "capture_end", "pool_release", "empty_cache", "record_stream"}

// ignored are actions that don't concern the allocator.
var ignored = map[string]bool{"snapshot": true, "annotate": true, "user_defined": true}

// skip counts an unknown action.
func (rec *Recording) skip(action string) {
	if ignored[action] {
		return
	}
	if rec.unknown == nil {
		rec.unknown = make(map[string]int)
	}
	if action = clip(action); len(rec.unknown) < 100 || rec.unknown[action] > 0 {
		rec.unknown[action]++
	}
}

// noteUnknown notes the actions that were skipped.
func (rec *Recording) noteUnknown() {
	for _, action := range slices.Sorted(maps.Keys(rec.unknown)) {
		rec.note("%d entries with the unknown action %q were skipped", rec.unknown[action], action)
	}
}

func (rec *Recording) note(format string, args ...any) {
	rec.Notes = append(rec.Notes, fmt.Sprintf(format, args...))
}

var actions = func() map[string]Action {
	m := make(map[string]Action)
	for i, name := range actionNames[:PoolNew] {
		m[name] = Action(i)
	}
	return m
}()

// calls are the actions that are calls, in recordings of PyTorch.
var calls = func() map[string]Action {
	m := make(map[string]Action)
	for i, name := range actionNames[PoolNew:] {
		m[name] = PoolNew + Action(i)
	}
	return m
}()

// String is PyTorch's name of the action.
func (a Action) String() string { return actionNames[a] }

// Driver reports whether the action is a call of the driver.
func (a Action) Driver() bool { return a >= SegmentAlloc && a <= SegmentUnmap }

// ours reports whether only recordings of memcache have the action.
func (a Action) ours() bool { return a >= Miss && a < PoolNew }

// Call reports whether the action is a call of a recording with Calls.
func (a Action) Call() bool { return a >= PoolNew }

// Releases reports whether the action gives memory back to the driver.
func (a Action) Releases() bool { return a == SegmentFree || a == SegmentUnmap }

// Entry is one thing that happened.
type Entry struct {
	Action Action
	// Flags are of our own recordings.
	Flags Flags
	// Pool is the number of the entry's private pool, if it is recorded; 0 is the default pool. Calls
	// have the number in Addr.
	Pool uint32
	// Addr is the block's or segment's address; 0 for an oom.
	Addr device.Ptr
	// Size is the request in bytes (of an oom, rounded) or the driver's bytes.
	Size   int64
	Stream uint64
	// Free is the device's free bytes at an oom.
	Free int64
	// Bytes are those of the block of an alloc or a free; 0: unknown.
	Bytes int64
	// Block is the number of the hand-out that an alloc begins and frees end; set by [NewProgram].
	Block int32
}

// Flags say how a call of our own recordings went.
type Flags uint8

// The flags.
const (
	Grew    Flags = 1 << iota // of an alloc: a Miss went before, or it waited for another request's
	Private                   // of an alloc, a flush and an empty_cache: of a private pool
	AtOnce                    // of a free_requested: the next entry completes it; of a free_completed: the call of Free saw it
)

// String names the action, size and address.
func (e Entry) String() string {
	if e.Action == OOM {
		return fmt.Sprintf("oom of %d bytes", e.Size)
	}
	if e.Action.Call() && e.Action != RecordStream {
		return fmt.Sprintf("%v of pool %d", e.Action, e.Addr)
	}
	return fmt.Sprintf("%v of %d bytes at %#x", e.Action, e.Size, e.Addr)
}

// MaxSize is beyond what any allocator takes, in bytes. A request that rounds up to it is recorded as a byte less.
const MaxSize = 1 << 60

// newEntry checks an entry, in a recording of our own or not. ok is false for one that is to be ignored.
func newEntry(action string, addr uint64, size int64, stream uint64, own bool) (e Entry, ok bool, err error) {
	a, known := actions[action]
	if !known || a.ours() && !own {
		if own && !ignored[action] {
			return e, false, fmt.Errorf("unknown action %q", clip(action))
		}
		return e, false, nil // of another version of PyTorch
	}
	if a.ours() {
		if size < 0 || size >= MaxSize {
			return e, false, fmt.Errorf("%s of %d bytes: sizes are 0 to 2^60-1", action, size)
		}
		if addr >= 1<<63 {
			return e, false, fmt.Errorf("%s at the address %#x: addresses are 0 to 2^63-1", action, addr)
		}
		return Entry{Action: a, Addr: device.Ptr(addr), Size: size, Stream: stream, Block: -1}, true, nil
	}
	if size <= 0 || size >= MaxSize {
		return e, false, fmt.Errorf("%s of %d bytes: sizes are 1 to 2^60-1", action, size)
	}
	e = Entry{Action: a, Size: size, Stream: stream, Block: -1}
	switch {
	case a == OOM:
		e.Free = int64(min(addr, MaxSize))
	case addr == 0 || addr >= 1<<63:
		return e, false, fmt.Errorf("%s at the address %#x: addresses are 1 to 2^63-1", action, addr)
	default:
		e.Addr = device.Ptr(addr)
	}
	return e, true, nil
}

// newCall checks a call.
func newCall(a Action, addr uint64, size int64, stream uint64) (Entry, error) {
	const maxPool = 1 << 31
	switch {
	case addr >= 1<<63:
		return Entry{}, fmt.Errorf("%v at the address %#x: addresses are 0 to 2^63-1", a, addr)
	case a != RecordStream && (addr >= maxPool || addr == 0 && a != EmptyPool):
		return Entry{}, fmt.Errorf("%v of the pool %d: pools are numbered from 1 to 2^31-1", a, addr)
	case size < 0 || size > PoolUseOnOOM|PoolNoSplit:
		return Entry{}, fmt.Errorf("%v with %d: flags are 0 to 3", a, size)
	}
	return Entry{Action: a, Addr: device.Ptr(addr), Size: size, Stream: stream, Block: -1}, nil
}

// clip keeps text from a file short.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}
