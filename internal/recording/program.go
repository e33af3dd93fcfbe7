package recording

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// Program has the calls that the callers of a recorded allocator made, and the events inside each.
type Program struct {
	*Recording
	Steps   []Step
	Streams []uint64 // the streams' IDs; steps have their index
	Blocks  int      // the number of hand-outs
	Pending int      // number of frees that were not complete at once
	// MostLive is the largest number of blocks in use or pending at a time.
	MostLive int
	// Start is the allocator's state at the first entry, or nil if it was empty or is unknown.
	// Contradiction explains why the entries contradict the final segments, or is "".
	Start         *Start
	Contradiction string
	// Jumbled is the reason why the entries of a recording of ours are not those of sequential
	// calls of one caller, so that a replay cannot repeat them; "": they are.
	Jumbled string
	// Homes are the pools that own the memory of each hand-out. A pool may lend memory to a request
	// of another. Nil if all memory belongs to the default pool.
	Homes []uint64
	// Overlap is the first entry from which on calls of several goroutines overlapped in time; -1:
	// none did. Overlapping calls may look sequential.
	Overlap int
}

// StepKind is a kind of call.
type StepKind uint8

// The kinds of calls.
const (
	StepAlloc StepKind = iota
	StepOOM            // an allocation that failed
	StepFree
	// empty_cache or trim_to, or other events outside of an allocation
	StepEmpty
	StepReset   // ResetPeakStats or ResetAccumulatedStats
	StepLimit   // SetMemoryFraction, or the limit of SetConfig
	StepOptions // the rest of SetConfig
	StepCall    // another call, of a recording with calls
	// events for frees of other calls, in a recording of ours
	StepOther
)

// Step is one call.
type Step struct {
	Kind   StepKind
	Later  bool // a free that was not complete at once
	Stream int32
	Block  int32 // the number of the hand-out
	// Entry is the index of the caller's entry, or of the first entry for a StepEmpty.
	Entry int32
	// From and To are the range of entries inside the call: completed frees and driver calls.
	From, To int32
	// Completed is the index of a free's completion; -1: there is none.
	Completed int32
	// Pool is the number of the pool of a request, or of the emptied pool, in a recording with
	// calls; 0: the default pool, or all.
	Pool uint64
	// Edge marks the first begin of a pool, or its last release: no pool exists before, or after.
	Edge bool
}

// Home returns the number of the pool that owns the memory of a hand-out; 0 is the default pool.
func (p *Program) Home(block int32) uint64 {
	if p.Homes == nil {
		return 0
	}
	return p.Homes[block]
}

// NewProgram makes the program of a recording. It fails if the entries contradict each other: a
// free of memory that is not allocated, two blocks at one address.
func NewProgram(rec *Recording) (*Program, error) {
	p := &Program{Recording: rec, Overlap: -1}
	b := builder{p: p, live: make(map[device.Ptr]handOut), closed: make(map[uint64]bool), streams: make(map[uint64]int32)}
	if !rec.Own {
		b.callBuilder = callBuilder{uses: make(map[uint64]int), recorded: make(map[int32]*recordedOn), homes: make(map[int32]uint64), begins: -1}
	}
	if rec.Own {
		p.Jumbled = ownReason(p)
	}
	if err := rec.Budget.Memory(stepMemory * int64(len(rec.Entries))); err != nil {
		return nil, fmt.Errorf("%s: %w", rec.Name, err)
	}
	p.Steps = make([]Step, 0, len(rec.Entries)+1)
	first, err := b.begin()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", rec.Name, err)
	}
	for i := first; i < len(rec.Entries); i++ {
		n, err := b.add(i)
		if err != nil {
			return nil, fmt.Errorf("%s: entry %d: %w", rec.Name, i, err)
		}
		i += n
	}
	if rec.Own {
		b.finish()
	} else {
		b.empty(len(rec.Entries))
	}
	if rec.Calls || rec.PrivatePools {
		p.Homes = make([]uint64, p.Blocks)
		for block, pool := range b.homes {
			if block >= 0 {
				p.Homes[block] = pool
			}
		}
	}
	return p, nil
}

// handOut is a block that is allocated or pending.
type handOut struct {
	size   int64
	stream uint64
	block  int32
	step   int32 // of a pending free; -1: it was before the recording
	freed  bool
}

type builder struct {
	p       *Program
	live    map[device.Ptr]handOut
	streams map[uint64]int32
	inside  int // the first entry inside the next call
	closed  map[uint64]bool
	callBuilder
}

// add handles entry i, and returns how many more entries it consumed.
func (b *builder) add(i int) (int, error) {
	entries := b.p.Entries
	e := &entries[i]
	if err := b.p.Budget.Work(entryWork); err != nil {
		return 0, err
	}
	if b.p.Own {
		b.own(i)
	}
	if e.Action.Call() {
		return 0, b.call(i)
	}
	switch e.Action {
	case Alloc, OOM:
		s := Step{Kind: StepOOM, Stream: b.stream(e.Stream), Block: -1, Entry: int32(i), From: int32(b.inside), To: int32(i), Completed: -1}
		if e.Action == Alloc {
			if h, ok := b.live[e.Addr]; ok {
				return 0, fmt.Errorf("%v: a block of %d bytes is there, and was not freed", e, h.size)
			}
			s.Kind, s.Block = StepAlloc, int32(b.p.Blocks)
			e.Block = s.Block
			if err := b.use(e.Addr, handOut{size: e.Size, stream: e.Stream, block: s.Block}); err != nil {
				return 0, err
			}
			b.p.Blocks++
		}
		var err error
		switch {
		case b.p.Calls:
			s.Pool, err = b.route(i, s.Block)
		case b.p.PrivatePools && !b.p.Own:
			s.Pool, err = b.servedBy(i, s.Block)
		}
		if err != nil {
			return 0, err
		}
		b.p.Steps = append(b.p.Steps, s)
		b.inside = i + 1
		if b.p.Calls {
			return 0, b.beginCapture(e.Addr, s.Block)
		}
	case FreeRequested:
		return b.free(i)
	case SegmentFree, SegmentUnmap:
		if b.p.PrivatePools && !b.p.Own {
			b.releasing(e)
		}
	case FreeCompleted:
		h, ok := b.live[e.Addr]
		if !ok || !h.freed {
			return 0, fmt.Errorf("%v: no free is pending there%s", e, lateHint)
		}
		e.Block = h.block
		if h.step < 0 {
			b.p.Start.Completed[h.block] = int32(i)
		} else {
			b.p.Steps[h.step].Completed = int32(i)
		}
		delete(b.live, e.Addr)
	}
	return 0, nil
}

// lateHint is appended to errors about memory that is missing in the recording.
const lateHint = "; the recording began later than its program, or kept only the last entries (max_entries), and its segments at the" +
	" end are missing or contradict it"

// free handles a free request and its completion, if that follows at once.
func (b *builder) free(i int) (int, error) {
	entries := b.p.Entries
	e := &entries[i]
	h, ok := b.live[e.Addr]
	switch {
	case !ok:
		return 0, fmt.Errorf("%v: nothing is allocated there%s", e, lateHint)
	case h.freed:
		return 0, fmt.Errorf("%v: the block was freed before", e)
	case h.size != e.Size || h.stream != e.Stream:
		return 0, fmt.Errorf("%v on stream %d: the block there has %d bytes and is of stream %d", e, e.Stream, h.size, h.stream)
	}
	if !b.p.Own {
		b.empty(i)
	}
	e.Block = h.block
	s := Step{Kind: StepFree, Stream: b.stream(e.Stream), Block: h.block, Entry: int32(i), From: int32(i), To: int32(i), Completed: -1}
	b.inside = i + 1
	if i+1 < len(entries) && entries[i+1].Action == FreeCompleted && entries[i+1].Addr == e.Addr && b.recorded[h.block] == nil && (!b.p.Own || (e.Flags|entries[i+1].Flags)&AtOnce != 0) {
		entries[i+1].Block = h.block
		s.Completed = int32(i + 1)
		b.inside++
		delete(b.live, e.Addr)
		b.p.Steps = append(b.p.Steps, s)
		return 1, nil
	}
	if r := b.recorded[h.block]; r != nil {
		r.deferred = len(b.contexts) > 0
	}
	s.Later = true
	h.freed, h.step = true, int32(len(b.p.Steps))
	b.live[e.Addr] = h
	b.p.Pending++
	b.p.Steps = append(b.p.Steps, s)
	return 0, nil
}

// use adds a hand-out.
func (b *builder) use(at device.Ptr, h handOut) error {
	b.live[at] = h
	if len(b.live) <= b.p.MostLive {
		return nil
	}
	b.p.MostLive = len(b.live)
	return b.p.Budget.Memory(liveMemory)
}

// empty makes a step of the entries up to entry i outside of an allocation.
func (b *builder) empty(i int) {
	if b.inside < i {
		b.p.Steps = append(b.p.Steps, Step{Kind: StepEmpty, Block: -1, Entry: int32(b.inside), From: int32(b.inside), To: int32(i), Completed: -1})
	}
	b.inside = i
}

func (b *builder) stream(id uint64) int32 {
	i, ok := b.streams[id]
	if !ok {
		i = int32(len(b.p.Streams))
		b.streams[id] = i
		b.p.Streams = append(b.p.Streams, id)
	}
	return i
}

// Inside returns the entries inside a step.
func (p *Program) Inside(s *Step) []Entry { return p.Entries[s.From:s.To] }
