package recording

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"regexp"
	"slices"
	"strconv"

	"github.com/nlpodyssey/gopickle/types"

	"github.com/cistern-ml/cistern/device"
)

// recordings makes a recording of each device in a snapshot that has entries.
func (s *snapshotReader) recordings(value any) ([]*Recording, error) {
	list, err := s.devices(value)
	if err != nil {
		return nil, err
	}
	// The values are garbage now.
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

// poolsOf is the private pools of a device.
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

// traceEntries gives a recording the entries of its device. All of them were shrunk, but those that
// are wrong or to be ignored. Usually they stand one after the other where they were read, and are
// not copied.
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

// copyEntries are the entries of a trace that has n of them in any order, or those of another one.
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

// traceEntry reads an entry. ok is false for one that is to be ignored.
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

// placed reads the fields that only memcache's own snapshots have.
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

// dictOf is a dict whose fields are looked up, which is charged: a pickle may name one dict many times.
func (s *snapshotReader) dictOf(v any, what string) (*types.Dict, error) {
	d, err := dictOf(v, what)
	if err != nil {
		return nil, err
	}
	return d, s.budget.Work(lookupWork + 4*int64(len(*d)))
}

// addSegments gives each device's recording its segments.
func (r *snapshotReader) addSegments(top *types.Dict, byDevice map[int64]*Recording) error {
	segments, err := listField(top, "segments", "segments")
	if err != nil {
		return err
	}
	without := make(map[int64]int) // segments by device, of those without a history
	for i, v := range segments {
		what := fmt.Sprintf("segments[%d]", i)
		d, err := r.dictOf(v, what)
		if err != nil {
			return err
		}
		dev := int64(0)
		if _, ok := field(d, "device"); ok {
			if dev, err = intField(d, "device", what); err != nil {
				return err
			}
		}
		rec := byDevice[dev]
		if rec == nil {
			without[dev]++
			continue
		}
		address, err1 := uintField(d, "address", what)
		size, err2 := intField(d, "total_size", what)
		stream, err3 := uintField(d, "stream", what)
		blocks, err4 := listField(d, "blocks", what+".blocks")
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return err
		}
		if err := r.budget.Memory(segmentMemory + blockMemory*int64(len(blocks))); err != nil {
			return err
		}
		s := Segment{Address: device.Ptr(address), Size: size, Stream: stream}
		if err := r.describe(&s, d, what); err != nil {
			return err
		}
		rec.PrivatePools = rec.PrivatePools || s.Pool != 0
		if s.Blocks, err = r.segmentBlocks(blocks, s.Address, what); err != nil {
			return err
		}
		rec.Segments = append(rec.Segments, s)
		r.addBlocks(rec, blocks)
	}
	for i, dev := range slices.Sorted(maps.Keys(without)) {
		for _, rec := range byDevice {
			if i < maxNotes {
				rec.note("device %d has %d segments but no history: skipped", dev, without[dev])
			}
		}
	}
	return nil
}

// noteHost notes the skipped history of pinned memory.
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

// countEntries is the number of dicts in a list, or in its lists, up to a depth. A pickle's list may
// contain itself.
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

// segmentBlocks tile their segment; the address is not in all versions.
func (r *snapshotReader) segmentBlocks(list types.List, at device.Ptr, what string) ([]Block, error) {
	blocks := make([]Block, 0, len(list))
	for i, v := range list {
		what := fmt.Sprintf("%s.blocks[%d]", what, i)
		d, err := r.dictOf(v, what)
		if err != nil {
			return nil, err
		}
		size, err1 := intField(d, "size", what)
		requested, err2 := requestOf(d, what)
		state, err3 := textField(d, "state", what)
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, err
		}
		blocks = append(blocks, Block{Address: at, Size: size, Requested: requested, State: state})
		at += device.Ptr(size)
	}
	return blocks, nil
}

// requestOf returns the requested size of a block. PyTorch 1.13 records it in the history of
// allocated blocks only.
func requestOf(d *types.Dict, what string) (int64, error) {
	if _, ok := field(d, "requested_size"); ok {
		return intField(d, "requested_size", what)
	}
	history, err := listField(d, "history", what+".history")
	if err != nil || len(history) == 0 {
		return unknownSize, err
	}
	last, err := dictOf(history[0], what+".history[0]")
	if err != nil {
		return 0, err
	}
	return intField(last, "real_size", what+".history[0]")
}

// describe reads the fields of a segment that not all versions have.
func (r *snapshotReader) describe(s *Segment, d *types.Dict, what string) error {
	if v, ok := field(d, "segment_type"); ok {
		name, ok := v.(string)
		if !ok {
			return fmt.Errorf("%s: segment_type is %s; want a string", what, kindOf(v))
		}
		s.Kind = segmentKind(name)
	}
	if v, ok := field(d, "is_expandable"); ok {
		if s.Mapped, ok = v.(bool); !ok {
			return fmt.Errorf("%s: is_expandable is %s; want a bool", what, kindOf(v))
		}
	}
	var err error
	s.Pool, err = r.pool(d, "segment_pool_id", what)
	return err
}

// pool returns the number of the private pool that a dict names; 0 is the default pool.
func (r *snapshotReader) pool(d *types.Dict, key, what string) (number uint64, err error) {
	v, ok := field(d, key)
	if !ok {
		return 0, nil
	}
	var id [2]uint64
	var values []any
	switch v := v.(type) {
	case *types.Tuple:
		values = *v
	case *types.List: // of a JSON file
		values = *v
	}
	if len(values) != len(id) {
		return 0, fmt.Errorf("%s: %s is %s; want a tuple of 2 integers", what, key, kindOf(v))
	}
	for i := range id {
		if id[i], err = uintOf(values[i], what+": "+key); err != nil {
			return 0, err
		}
	}
	if id == [2]uint64{} {
		return 0, nil
	}
	if number = r.numbers[id]; number == 0 {
		if r.pools == nil {
			r.pools, r.numbers = make(map[uint64][2]uint64), make(map[[2]uint64]uint64)
		}
		number = uint64(len(r.pools) + 1)
		r.pools[number], r.numbers[id] = id, number
	}
	return number, nil
}

// addSettings gives the recordings the allocator's options.
func addSettings(top *types.Dict, list []*Recording) error {
	v, ok := field(top, "allocator_settings")
	if !ok {
		return nil
	}
	const what = "allocator_settings"
	d, err := dictOf(v, what)
	if err != nil {
		return err
	}
	var conf string
	for _, name := range []string{"PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} {
		if _, ok := field(d, name); ok {
			if conf, err = textField(d, name, what); err != nil {
				return err
			}
		}
	}
	s := &Settings{MaxSplitSize: -1}
	if _, ok := field(d, "max_split_size"); ok {
		if s.MaxSplitSize, err = intField(d, "max_split_size", what); err != nil {
			return err
		}
	}
	if v, ok := field(d, "garbage_collection_threshold"); ok {
		f, ok := v.(float64)
		if !ok || !(f >= 0 && f < 1) {
			return fmt.Errorf("%s: garbage_collection_threshold is %v; want a float from 0 to 1", what, kindOf(v))
		}
		s.GarbageCollectionThreshold = f
	}
	if v, ok := field(d, "expandable_segments"); ok {
		if s.ExpandableSegments, ok = v.(bool); !ok {
			return fmt.Errorf("%s: expandable_segments is %s; want a bool", what, kindOf(v))
		}
	}
	if err := divisions(d, s); err != nil {
		return err
	}
	unknown := unknownSettings(d)
	unknown = unknown[:min(len(unknown), maxNotes)]
	for _, rec := range list {
		rec.Conf, rec.Settings = conf, s
		for _, name := range unknown {
			rec.note("the allocator setting %s is unknown and ignored", name)
		}
	}
	return nil
}

// knownSettings are the keys of allocator_settings that are read, or that the option string has
// too, or that concern pinned memory.
var knownSettings = regexp.MustCompile(`^(PYTORCH_(CUDA_|HIP_)?ALLOC_CONF|max_split_size|garbage_collection_threshold|expandable_segments|` +
	`roundup_power2_divisions|release_lock_on_(cuda|hip)malloc|graph_capture_record_stream_reuse|per_process_memory_fraction|` +
	`throw_on_(cuda|hip)malloc_oom|large_segment_size(_mb)?|max_non_split_rounding(_size|_mb)?|expandable_segments_reserve\w*|pinned_\w+)$`)

// unknownSettings are the other keys whose values are not false, 0 or empty.
func unknownSettings(d *types.Dict) (names []string) {
	for _, e := range *d {
		name, ok := e.Key.(string)
		if !ok || knownSettings.MatchString(name) {
			continue
		}
		switch v := e.Value.(type) {
		case nil:
		case bool, int, float64, string:
			if v != false && v != 0 && v != 0.0 && v != "" {
				names = append(names, clip(fmt.Sprintf("%s = %v", name, v)))
			}
		default:
			names = append(names, clip(name))
		}
	}
	return names
}

// divisions reads {"1": n, "2": n, ... "32768": n}: sizes in MiB.
func divisions(d *types.Dict, s *Settings) error {
	v, ok := field(d, "roundup_power2_divisions")
	if !ok {
		return nil
	}
	const what = "roundup_power2_divisions"
	list, err := dictOf(v, what)
	if err != nil {
		return err
	}
	for _, e := range *list {
		key, _ := e.Key.(string)
		mib, err := strconv.ParseUint(key, 10, 16)
		n, ok := e.Value.(int)
		if err != nil || bits.OnesCount64(mib) != 1 || !ok || n < 0 || n > 1<<30 {
			return fmt.Errorf("%s has the entry %q: %s; want powers of two up to 32768 and numbers", what, clip(key), kindOf(e.Value))
		}
		s.RoundupPower2Divisions[bits.Len64(mib)-1] = int64(n)
	}
	return nil
}
