package recording

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nlpodyssey/gopickle/types"

	"github.com/cistern-ml/cistern/device"
)

// addSegments adds the segments of each device to its recording.
func (r *snapshotReader) addSegments(top *types.Dict, byDevice map[int64]*Recording) error {
	segments, err := listField(top, "segments", "segments")
	if err != nil {
		return err
	}
	// the number of segments without a history, by device
	without := make(map[int64]int)
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

// segmentBlocks returns blocks that tile their segment. Not all versions record a block's address.
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

// requestOf returns the requested size of a block. PyTorch 1.13 records it only in the history of
// allocated blocks.
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
