package recording

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/nlpodyssey/gopickle/types"
)

// recordings makes a recording for each device in a snapshot that has entries.
func (s *snapshotReader) recordings(value any) ([]*Recording, error) {
	list, err := s.devices(value)
	if err != nil {
		return nil, err
	}
	// The decoded values are garbage now.
	charged, _ := s.budget.Spent()
	kept := int64(len(s.entries)+s.copied) * entryMemory
	if s.tables != nil {
		kept += int64(len(s.entries)+s.copied)*detailMemory + definitionMemory*int64(len(s.tables.LabelTable)+len(s.tables.Frames))
		for _, stack := range s.tables.StackTable {
			kept += definitionMemory + 4*int64(len(stack))
		}
	}
	for _, rec := range list {
		for i := range rec.Segments {
			kept += segmentMemory + blockMemory*int64(len(rec.Segments[i].Blocks))
		}
	}
	return list, s.budget.Memory(min(0, kept-charged))
}

func (s *snapshotReader) devices(value any) ([]*Recording, error) {
	top, err := dictOf(value, "the snapshot")
	if err != nil {
		return nil, err
	}
	traces, err := listField(top, "device_traces", "device_traces")
	if err != nil {
		return nil, err
	}
	var list []*Recording
	byDevice := make(map[int64]*Recording)
	for i, v := range traces {
		what := fmt.Sprintf("device_traces[%d]", i)
		trace, ok := v.(*types.List)
		if !ok {
			return nil, fmt.Errorf("%s is %s; want a list", what, kindOf(v))
		}
		if len(*trace) == 0 {
			continue
		}
		if len(*trace) > maxEntries {
			return nil, errTooMuch("entries", maxEntries)
		}
		if err := s.budget.Charge(recordingMemory, recordingWork); err != nil {
			return nil, err
		}
		rec := &Recording{Segments: []Segment{}}
		if err := s.traceEntries(rec, *trace, what); err != nil {
			return nil, err
		}
		list = append(list, rec)
		byDevice[int64(i)] = rec
	}
	if len(list) == 0 {
		return nil, errors.New("the snapshot has no history: call torch.cuda.memory._record_memory_history() before the program allocates")
	}
	if err := s.addSegments(top, byDevice); err != nil {
		return nil, err
	}
	for _, rec := range list {
		rec.Pools = s.poolsOf(rec)
		rec.PrivatePools = rec.PrivatePools || slices.ContainsFunc(rec.Entries, func(e Entry) bool { return e.Pool != 0 })
	}
	if err := s.addAnnotations(top, byDevice); err != nil {
		return nil, err
	}
	if err := s.noteHost(top, list); err != nil {
		return nil, err
	}
	return list, addSettings(top, list)
}

// poolsOf returns the private pools of a device.
func (s *snapshotReader) poolsOf(rec *Recording) map[uint64][2]uint64 {
	if s.pools == nil {
		return nil
	}
	pools := make(map[uint64][2]uint64)
	add := func(number uint64) {
		if id, ok := s.pools[number]; ok {
			pools[number] = id
		}
	}
	for i := range rec.Segments {
		add(rec.Segments[i].Pool)
	}
	for i := range rec.Entries {
		add(uint64(rec.Entries[i].Pool))
	}
	return pools
}

// traceEntries adds the entries of its device to a recording. All of them were shrunk, except
// invalid and ignored ones. Usually they are contiguous in the order of reading, and are not
// copied.
func (s *snapshotReader) traceEntries(rec *Recording, trace types.List, what string) error {
	from, n, ordered := 0, 0, true
	for i, v := range trace {
		if at, ok := s.shrunk(v); ok {
			if n == 0 {
				from = at
			}
			ordered = ordered && at == from+n
			n++
			continue
		}
		what := what + "[" + strconv.Itoa(i) + "]"
		d, err := s.dictOf(v, what)
		if err != nil {
			return err
		}
		if _, _, err := s.traceEntry(d, what); err != nil {
			return err
		}
		action, _ := textField(d, "action", what)
		rec.skip(action)
	}
	rec.noteUnknown()
	if ordered && from >= s.taken {
		s.taken = from + n
		rec.Entries, rec.Details = s.entries[from:s.taken:s.taken], s.tables.part(from, s.taken)
	} else {
		var err error
		if rec.Entries, rec.Details, err = s.copyEntries(trace, n); err != nil {
			return err
		}
	}
	rec.Details.fromFirst()
	return nil
}

// copyEntries returns the entries of a trace with n entries in any order, or those of another
// trace.
func (s *snapshotReader) copyEntries(trace types.List, n int) ([]Entry, *Details, error) {
	if err := s.budget.Memory(int64(n) * (entryMemory + detailMemory)); err != nil {
		return nil, nil, err
	}
	s.copied += n
	entries := make([]Entry, 0, n)
	details := s.tables.another()
	for _, v := range trace {
		if at, ok := s.shrunk(v); ok {
			entries = append(entries, s.entries[at])
			if details != nil {
				details.add(s.tables.at(at))
			}
		}
	}
	return entries, details.finish(), nil
}

// traceEntry reads an entry. ok is false if the entry is ignored.
func (s *snapshotReader) traceEntry(d *types.Dict, what string) (e Entry, ok bool, err error) {
	action, err := textField(d, "action", what)
	if _, known := actions[action]; err != nil || !known {
		return e, false, err
	}
	key := "addr"
	if action == OOM.String() {
		key = "device_free"
	}
	addr, err1 := uintField(d, key, what)
	size, err2 := intField(d, "size", what)
	stream, err3 := uintField(d, "stream", what)
	if err := errors.Join(err1, err2, err3); err != nil {
		return e, false, err
	}
	if e, ok, err = newEntry(action, addr, size, stream, false); err != nil || !ok {
		if err != nil {
			err = fmt.Errorf("%s: %w", what, err)
		}
		return e, ok, err
	}
	return e, true, s.placed(&e, d, what)
}

// placed reads the fields that exist only in memcache's own snapshots.
func (s *snapshotReader) placed(e *Entry, d *types.Dict, what string) error {
	pooled, sized := false, false
	for i := range *d {
		key, _ := (*d)[i].Key.(string)
		pooled, sized = pooled || key == "pool_id", sized || key == "block_size"
	}
	if sized {
		bytes, err := intField(d, "block_size", what)
		if err != nil {
			return err
		}
		if bytes < e.Size || bytes >= MaxSize {
			return fmt.Errorf("%s: block_size is %d; want at least the %d bytes of the request", what, bytes, e.Size)
		}
		e.Bytes = bytes
	}
	if !pooled {
		return nil
	}
	pool, err := s.pool(d, "pool_id", what)
	e.Pool = uint32(pool)
	return err
}

// dictOf returns a dict and charges for the lookups of its fields, because a pickle may name one
// dict many times.
func (s *snapshotReader) dictOf(v any, what string) (*types.Dict, error) {
	d, err := dictOf(v, what)
	if err != nil {
		return nil, err
	}
	return d, s.budget.Work(lookupWork + 4*int64(len(*d)))
}

// noteHost adds a note about the skipped history of pinned memory.
func (s *snapshotReader) noteHost(top *types.Dict, list []*Recording) error {
	v, _ := field(top, "host_traces")
	n, err := s.countEntries(v, 2)
	if err != nil {
		return err
	}
	for _, rec := range list {
		if n > 0 {
			rec.note("%d entries about pinned host memory (host_traces) were skipped", n)
		}
	}
	return nil
}

// countEntries counts the dicts in a list and in its nested lists, up to a depth, because a
// pickle's list may contain itself.
func (s *snapshotReader) countEntries(v any, depth int) (n int, err error) {
	l, ok := v.(*types.List)
	if !ok || depth == 0 {
		return 0, nil
	}
	if err := s.budget.Scan(8 * len(*l)); err != nil {
		return 0, err
	}
	for _, v := range *l {
		more := 1
		if _, ok := v.(*types.Dict); !ok {
			if more, err = s.countEntries(v, depth-1); err != nil {
				return 0, err
			}
		}
		n += more
	}
	return n, nil
}
