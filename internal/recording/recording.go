// Package recording reads recordings of PyTorch's caching allocator or of memcache, and makes
// programs of them: the calls of the allocator's callers. [Read] reads a file, and [NewProgram]
// makes its program.
//
// There are four forms, plain or compressed with gzip or zstd: JSON lines (a header, then one line
// for each entry), the JSON lines that memcache's programs stream (own.go), the pickle of
// torch.cuda.memory._dump_snapshot, and the same values as JSON. Files may be hostile: a budget
// bounds their cost, a pickle may contain only plain values, and every entry is checked.
package recording

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/budget"
)

// Recording has the events of one device's allocator.
type Recording struct {
	// Name is the file's name, with the device if the file has several.
	Name string
	// Conf is the option string (PYTORCH_CUDA_ALLOC_CONF).
	Conf string
	// Options are the option strings of SetOptions, by number.
	Options []string
	// Settings are the options in force, if the recording has them outside of the string.
	Settings *Settings
	// TotalMemory is the device's memory in bytes; 0: unknown.
	TotalMemory int64
	// Limit is the memory limit in bytes, 0 for none, if LimitKnown.
	Limit      int64
	LimitKnown bool
	// Stats are the flattened statistics at the end; nil: unknown.
	Stats map[string]int64
	// PrivatePools reports that some memory belongs to graph captures or MemPools, which the
	// entries of requests do not show.
	PrivatePools bool
	// Calls reports that the entries include the calls about pools, empty_cache and record_stream.
	// Otherwise the callers' entries are only alloc and free.
	Calls bool
	// Pools are PyTorch's IDs of the pools, by the numbers in calls and segments.
	Pools map[uint64][2]uint64
	// Segments is the memory at the end; nil: unknown.
	Segments []Segment
	// Entries are the events, in order. If a recording of ours began while memory was in use, its
	// first Initial entries allocate that memory.
	Entries []Entry
	Initial int
	// Own reports that memcache made the recording, and Unfinished that it ends before its program
	// or its Close did.
	Own, Unfinished bool
	// HostMemory reports that the device of a recording of ours is host memory, where addresses are
	// scarce.
	HostMemory bool
	// Budget is the budget of the file; nil: it is unlimited.
	Budget *budget.Budget
	// Notes describe the parts of the file that were skipped.
	Notes []string
	// Details are nil unless they were requested.
	Details *Details

	start   int64 // of our own: microseconds since 1970
	unknown map[string]int
}

// Settings are the options in the allocator_settings of PyTorch's snapshot.
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

// Kind is the kind of blocks in a segment.
type Kind uint8

// The kinds of segments.
const (
	UnknownKind Kind = iota
	SmallKind
	LargeKind
)

// segmentKind returns the kind for a snapshot's segment_type.
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

// Action is the kind of an entry.
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
	// Actions of recordings of memcache only.
	Miss       // no free block serves a request, which takes the growth lock
	Flush      // wait for pending frees, and return free memory to the driver
	Reserve    // addresses for an expandable segment; the address is 0 if there were none
	Refused    // the driver has no memory
	EmptyCache // the end of such a call, which began with a Flush
	// Failed is the end of a request that failed for another reason than memory, or of an
	// empty_cache or trim_to that failed.
	Failed
	StreamClosed // free segments of the entry's stream go to another one
	ResetPeaks   // ResetPeakStats
	ResetTotals  // ResetAccumulatedStats
	Overlap      // the first call that began during another one
	SetLimit     // the memory limit becomes Size, in bytes; 0: none
	SetOptions   // the options, without the limit, become those of number Addr in Recording.Options
	Trim         // the end of TrimTo to Size bytes, which may have begun with a Flush
	// Calls, in recordings of PyTorch only, at the position of the call, with the number of a pool
	// instead of the address.
	PoolNew      // a MemPool is made; Size has PoolUseOnOOM and PoolNoSplit
	PoolBegin    // use_mem_pool: the thread allocates from the pool from here on
	PoolEnd      // its end
	CaptureBegin // of a graph: the entry's stream and its forks allocate from the pool
	CaptureEnd   // its end
	PoolRelease  // a context, a graph or a MemPool of the pool has ended
	EmptyPool    // empty_cache of the pool, or of all for number 0
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

// ignored are actions unrelated to the allocator.
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

// noteUnknown adds a note about the skipped actions.
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

// String returns PyTorch's name of the action.
func (a Action) String() string { return actionNames[a] }

// Driver reports whether the action is a call of the driver.
func (a Action) Driver() bool { return a >= SegmentAlloc && a <= SegmentUnmap }

// ours reports whether only recordings of memcache have the action.
func (a Action) ours() bool { return a >= Miss && a < PoolNew }

// Call reports whether the action is a call of a recording with Calls.
func (a Action) Call() bool { return a >= PoolNew }

// Releases reports whether the action returns memory to the driver.
func (a Action) Releases() bool { return a == SegmentFree || a == SegmentUnmap }

// Entry is one event.
type Entry struct {
	Action Action
	// Flags are set in our own recordings.
	Flags Flags
	// Pool is the number of the entry's private pool, if it is recorded; 0 is the default pool.
	// Calls have the number in Addr.
	Pool uint32
	// Addr is the block's or segment's address; 0 for an oom.
	Addr device.Ptr
	// Size is the request in bytes (rounded for an oom) or the driver's bytes.
	Size   int64
	Stream uint64
	// Free is the device's free bytes at an oom.
	Free int64
	// Bytes is the size of the block of an alloc or a free; 0: unknown.
	Bytes int64
	// Block is the number of the hand-out that an alloc begins and frees end; set by [NewProgram].
	Block int32
}

// Flags describe the outcome of a call in our own recordings.
type Flags uint8

// The flags.
const (
	Grew    Flags = 1 << iota // of an alloc: after a Miss, or a wait for that of another
	Private                   // of an alloc, a flush and an empty_cache: in a private pool
	// AtOnce of a free_requested: the next entry completes it. Of a free_completed: the call of
	// Free itself saw the completion.
	AtOnce
)

// String formats the action, size and address.
func (e Entry) String() string {
	if e.Action == OOM {
		return fmt.Sprintf("oom of %d bytes", e.Size)
	}
	if e.Action.Call() && e.Action != RecordStream {
		return fmt.Sprintf("%v of pool %d", e.Action, e.Addr)
	}
	return fmt.Sprintf("%v of %d bytes at %#x", e.Action, e.Size, e.Addr)
}

// MaxSize is more than any allocator serves, in bytes. A request that rounds up to it is recorded
// as a byte less.
const MaxSize = 1 << 60

// newEntry checks an entry of our own or of another recording. ok is false if the entry is ignored.
func newEntry(action string, addr uint64, size int64, stream uint64, own bool) (e Entry, ok bool, err error) {
	a, known := actions[action]
	if !known || a.ours() && !own {
		if own && !ignored[action] {
			return e, false, fmt.Errorf("unknown action %q", clip(action))
		}
		return e, false, nil // from another version of PyTorch
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

// clip shortens text from a file.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}
