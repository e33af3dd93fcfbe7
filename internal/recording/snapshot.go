package recording

import (
	"errors"
	"fmt"
	"math/big"
	"math/bits"
	"strconv"

	"github.com/nlpodyssey/gopickle/types"

	"github.com/cistern-ml/cistern/device"
)

// recordings makes a recording of each device in a snapshot that has entries.
func (s *snapshotReader) recordings(value any) ([]*Recording, error) {
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
	left := s.limits.Records
	for i, v := range traces {
		what := fmt.Sprintf("device_traces[%d]", i)
		trace, ok := v.(*types.List)
		if !ok {
			return nil, fmt.Errorf("%s is %s; want a list", what, kindOf(v))
		}
		if len(*trace) == 0 {
			continue
		}
		if left -= len(*trace); left < 0 {
			return nil, tooMuch("entries", int64(s.limits.Records))
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
	if err := addAnnotations(top, byDevice); err != nil {
		return nil, err
	}
	return list, addSettings(top, list)
}

// traceEntries gives a recording the entries of its device. All of them were shrunk, but those that are wrong or to be
// ignored. Usually they stand one after the other where they were read, and are not copied.
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
		d, err := dictOf(v, what)
		if err != nil {
			return err
		}
		if _, _, err := traceEntry(d, what); err != nil {
			return err
		}
	}
	if ordered && from >= s.taken {
		s.taken = from + n
		rec.Entries, rec.Details = s.entries[from:s.taken:s.taken], s.tables.part(from, s.taken)
	} else {
		rec.Entries, rec.Details = s.copyEntries(trace, n)
	}
	rec.Details.fromFirst()
	return nil
}

// copyEntries are the entries of a trace that has n of them in any order, or those of another one.
func (s *snapshotReader) copyEntries(trace types.List, n int) ([]Entry, *Details) {
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
	return entries, details.finish()
}

// traceEntry reads an entry. ok is false for one that is to be ignored.
func traceEntry(d *types.Dict, what string) (e Entry, ok bool, err error) {
	action, err := textField(d, "action", what)
	if err != nil || ignored[action] {
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
	if e, ok, err = newEntry(action, addr, size, stream, false); err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return e, ok, err
}

// addSegments gives each device's recording its segments.
func (r *snapshotReader) addSegments(top *types.Dict, byDevice map[int64]*Recording) error {
	segments, err := listField(top, "segments", "segments")
	if err != nil {
		return err
	}
	left := r.limits.Records
	for i, v := range segments {
		what := fmt.Sprintf("segments[%d]", i)
		d, err := dictOf(v, what)
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
			continue
		}
		address, err1 := uintField(d, "address", what)
		size, err2 := intField(d, "total_size", what)
		stream, err3 := uintField(d, "stream", what)
		blocks, err4 := listField(d, "blocks", what+".blocks")
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return err
		}
		if left -= len(blocks) + 1; left < 0 {
			return tooMuch("blocks", int64(r.limits.Records))
		}
		s := Segment{Address: device.Ptr(address), Size: size, Stream: stream}
		if s.Blocks, err = segmentBlocks(blocks, s.Address, what); err != nil {
			return err
		}
		rec.Segments = append(rec.Segments, s)
		r.addBlocks(rec, blocks)
		rec.PrivatePools = rec.PrivatePools || private(d)
	}
	return nil
}

// segmentBlocks tile their segment; the address is not in all versions.
func segmentBlocks(list types.List, at device.Ptr, what string) ([]Block, error) {
	blocks := make([]Block, 0, len(list))
	for i, v := range list {
		what := fmt.Sprintf("%s.blocks[%d]", what, i)
		d, err := dictOf(v, what)
		if err != nil {
			return nil, err
		}
		size, err1 := intField(d, "size", what)
		requested, err2 := intField(d, "requested_size", what)
		state, err3 := textField(d, "state", what)
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, err
		}
		blocks = append(blocks, Block{Address: at, Size: size, Requested: requested, State: state})
		at += device.Ptr(size)
	}
	return blocks, nil
}

// private reports whether a segment is of a pool other than (0, 0).
func private(segment *types.Dict) bool {
	v, _ := field(segment, "segment_pool_id")
	t, ok := v.(*types.Tuple)
	if !ok {
		return false
	}
	for _, id := range *t {
		switch n := id.(type) {
		case int:
			if n != 0 {
				return true
			}
		case *big.Int: // many digits
			return true
		}
	}
	return false
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
	if _, ok := field(d, "PYTORCH_CUDA_ALLOC_CONF"); ok {
		if conf, err = textField(d, "PYTORCH_CUDA_ALLOC_CONF", what); err != nil {
			return err
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
	for _, rec := range list {
		rec.Conf, rec.Settings = conf, s
	}
	return nil
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
