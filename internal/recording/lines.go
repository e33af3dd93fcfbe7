package recording

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/budget"
)

// header is the first line. Its other keys are not needed.
type header struct {
	Format      string           `json:"format"` // of our own recordings
	Start       int64            `json:"start"`
	Initial     int              `json:"initial"`
	HostMemory  bool             `json:"host_memory"`
	Conf        string           `json:"conf"`
	TotalMemory int64            `json:"total_memory"`
	Limit       json.RawMessage  `json:"limit"`
	Stats       map[string]int64 `json:"stats"`
	Segments    headerSegments   `json:"segments"`

	Pools map[uint64][2]uint64 `json:"pools"` // a recording with calls
}

// headerSegments are segments at the end.
type headerSegments []struct {
	Address uint64        `json:"address"`
	Size    int64         `json:"total_size"`
	Stream  streamID      `json:"stream"`
	Pool    uint64        `json:"pool"`
	Blocks  []headerBlock `json:"blocks"`
}

// streamID is a stream's handle, which Python may print as a negative number.
type streamID uint64

func (s *streamID) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '-' {
		var v int64
		err := json.Unmarshal(b, &v)
		*s = streamID(v)
		return err
	}
	return json.Unmarshal(b, (*uint64)(s))
}

// headerBlock is [address, size, requested_size, state].
type headerBlock Block

func (b *headerBlock) UnmarshalJSON(text []byte) error {
	var address uint64
	fields := []any{&address, &b.Size, &b.Requested, &b.State}
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	if len(fields) != 4 {
		return fmt.Errorf("a block of the header has %d values; it is [address, size, requested_size, state]", len(fields))
	}
	b.Address = device.Ptr(address)
	return nil
}

func readLines(in *lineReader, o Options) (*Recording, error) {
	line, err := in.line()
	if err != nil && (len(line) == 0 || !errors.Is(err, io.EOF)) {
		return nil, err
	}
	rec, err := parseHeader(line, in.budget)
	if err != nil {
		return nil, fmt.Errorf("line 1: %w", err)
	}
	if rec.Own {
		return rec, readOwn(in, rec, o)
	}
	rec.Details = newCollector(o).finish() // sets Details, which are empty
	for n := 2; ; n++ {
		line, err := in.line()
		if errors.Is(err, io.EOF) && len(line) == 0 {
			rec.noteUnknown()
			rec.nameSegmentPools()
			return rec, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if err := in.budget.Work(lineWork); err != nil {
			return nil, err
		}
		e, ok, err := parseEntry(line)
		if err == nil {
			err = rec.charge(in.budget, false)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if !ok {
			rec.skip(actionOf(line))
		} else {
			rec.Calls = rec.Calls || e.Action.Call()
			rec.Entries = append(rec.Entries, e)
		}
	}
}

// nameSegmentPools records the private pools of the segments of a recording without calls, with an
// ID for each pool that has none.
func (rec *Recording) nameSegmentPools() {
	if rec.Calls {
		return
	}
	for _, s := range rec.Segments {
		if s.Pool == 0 {
			continue
		}
		rec.PrivatePools = true
		if rec.Pools == nil {
			rec.Pools = make(map[uint64][2]uint64)
		}
		if rec.Pools[s.Pool] == [2]uint64{} {
			rec.Pools[s.Pool] = [2]uint64{0, s.Pool}
		}
	}
}

// charge charges for an entry before it is added, with or without its details.
func (rec *Recording) charge(b *budget.Budget, details bool) error {
	if len(rec.Entries) == maxEntries {
		return errTooMuch("entries", maxEntries)
	}
	bytes := int64(entryMemory)
	if details {
		bytes += detailMemory
	}
	return b.Memory(bytes)
}

func parseHeader(line []byte, b *budget.Budget) (*Recording, error) {
	var h header
	err := json.Unmarshal(line, &h)
	if err != nil {
		return nil, fmt.Errorf("the header: %w", err)
	}
	if err := checkStrings(h.Conf); err != nil {
		return nil, fmt.Errorf("the header: %w", err)
	}
	if h.TotalMemory < 0 || h.TotalMemory >= MaxSize {
		return nil, fmt.Errorf("the header: total_memory is %d; want bytes, below 2^60", h.TotalMemory)
	}
	rec := &Recording{Conf: h.Conf, TotalMemory: h.TotalMemory, Stats: h.Stats, LimitKnown: h.Limit != nil}
	if h.Format != "" {
		if h.Format != Format {
			return nil, fmt.Errorf("the header: the format is %q; this reads %q", clip(h.Format), Format)
		}
		if h.Initial < 0 {
			return nil, fmt.Errorf("the header: initial is %d; want a number of entries", h.Initial)
		}
		rec.Own, rec.Initial, rec.start, rec.HostMemory = true, h.Initial, h.Start, h.HostMemory
	}
	if h.Limit != nil {
		if err := json.Unmarshal(h.Limit, &rec.Limit); err != nil || rec.Limit < 0 {
			return nil, fmt.Errorf("the header: limit is %s; want bytes, or null for none", clip(string(h.Limit)))
		}
	}
	rec.Calls, rec.Pools = h.Pools != nil && !rec.Own, h.Pools
	if err := b.Memory(fieldMemory * int64(len(h.Stats)+len(h.Pools))); err != nil {
		return nil, err
	}
	rec.Segments, err = h.Segments.list(b)
	return rec, err
}

// list returns the segments, or nil if there are none.
func (h headerSegments) list(budget *budget.Budget) ([]Segment, error) {
	if h == nil {
		return nil, nil
	}
	list := make([]Segment, 0, len(h))
	for _, s := range h {
		if err := budget.Memory(segmentMemory + blockMemory*int64(len(s.Blocks))); err != nil {
			return nil, err
		}
		seg := Segment{Address: device.Ptr(s.Address), Size: s.Size, Stream: uint64(s.Stream), Pool: s.Pool}
		for _, b := range s.Blocks {
			if err := checkStrings(b.State); err != nil {
				return nil, err
			}
			seg.Blocks = append(seg.Blocks, Block(b))
		}
		list = append(list, seg)
	}
	return list, nil
}

// actionOf returns the action of an entry, which is its first value.
func actionOf(line []byte) (action string) {
	_ = json.Unmarshal(line, &[]any{&action})
	return action
}

// parseEntry reads [action, address, size, stream].
func parseEntry(line []byte) (Entry, bool, error) {
	var action string
	var addr uint64
	var size int64
	var stream streamID
	fields := []any{&action, &addr, &size, &stream}
	if err := json.Unmarshal(line, &fields); err != nil {
		return Entry{}, false, err
	}
	if len(fields) != 4 {
		return Entry{}, false, fmt.Errorf("%d values; an entry is [action, address, size, stream]", len(fields))
	}
	if a, ok := calls[action]; ok {
		e, err := newCall(a, addr, size, uint64(stream))
		return e, err == nil, err
	}
	return newEntry(action, addr, size, uint64(stream), false)
}
