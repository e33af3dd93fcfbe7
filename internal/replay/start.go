package replay

import (
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/restore"
	"github.com/cistern-ml/cistern/memcache"
)

// maxMapped bounds the bytes of expandable segments at the start, because each granule is a call of
// the device.
const maxMapped = 4 << 40

// restore puts the cache into the state at the start of the recording, at the recorded addresses.
func (m *machine) restore(config memcache.Config) error {
	start := m.p.Start
	if start == nil {
		return nil
	}
	if m.work(80*start.Blocks() + 100*len(start.Segments)); m.err != nil {
		return m.err
	}
	t := tiler{config: config, ends: endsOf(m.p)}
	var list []restore.Segment
	var at []device.Ptr
	ranges := make(map[rangeKey]int) // of list
	bases := rangeBases(m.p)
	for i := range start.Segments {
		s := &start.Segments[i]
		pieces, err := t.tile(s)
		if err != nil {
			return err
		}
		key := keyOfStart(s)
		k, ok := ranges[key]
		if far := device.Ptr(m.dev.Properties().TotalMemory); ok && s.Address > at[k]+far+far/8 {
			ok, bases[key] = false, s.Address // of another range of the same stream
		}
		if !s.Mapped || !ok {
			k = len(list)
			list = append(list, restore.Segment{Context: m.pools.context(s.Pool), Stream: m.byID[s.Stream],
				Small: s.Kind == recording.SmallKind, Expandable: s.Mapped})
			at = append(at, s.Address)
			if s.Mapped {
				ranges[key], at[k] = k, bases[key]
			}
		}
		if end := at[k] + device.Ptr(bytesOf(list[k].Pieces)); end < s.Address {
			list[k].Pieces = append(list[k].Pieces, restore.Piece{State: restore.Unmapped, Bytes: int64(s.Address - end)})
		}
		list[k].Pieces = append(list[k].Pieces, pieces...)
	}
	mapped := int64(0)
	for i := range list {
		if list[i].Expandable {
			mapped += min(bytesOf(list[i].Pieces), maxMapped)
		}
		if mapped >= maxMapped {
			return fmt.Errorf("expandable segments of %d TiB and more: no device has so much memory", maxMapped>>40)
		}
	}
	m.setRanges(list, at)
	next := 0
	m.dev.SetScript(null.Script{Before: func(c *null.Call) {
		c.Err = m.driver(c.Op)
		if c.Op == null.OpAlloc || c.Op == null.OpReserve {
			c.Ptr = at[next]
		}
	}, After: func(c null.Call) {
		m.count(c.Op)
		if c.Op == null.OpAlloc || c.Op == null.OpReserve {
			next++
		}
	}})
	if err := restore.Into(m.cache, list); err != nil {
		return err
	}
	numbers := make(map[device.Ptr]int, start.Blocks()) // of hand-outs, by address
	for i := range start.Segments {
		for _, b := range start.Segments[i].Blocks {
			numbers[b.Address] = len(numbers)
		}
	}
	for i := range list {
		for _, piece := range list[i].Pieces {
			if piece.State == restore.Used {
				b := piece.Block.(memcache.Block)
				m.blocks[numbers[b.Ptr()]] = b
			}
		}
	}
	return m.freePending()
}

// freePending frees the blocks whose frees are pending at the start.
func (m *machine) freePending() error {
	for _, block := range pendingAtStart(m.p) {
		if err := m.release(&recording.Step{Kind: recording.StepFree, Later: true, Block: block}, true); err != nil {
			return err
		}
	}
	return nil
}

// pendingAtStart returns the hand-outs whose frees are pending at the start.
func pendingAtStart(p *recording.Program) (pending []int32) {
	if p.Start == nil {
		return nil
	}
	block := int32(0)
	for i := range p.Start.Segments {
		for _, b := range p.Start.Segments[i].Blocks {
			if b.State != string(memcache.BlockAllocated) {
				pending = append(pending, block)
			}
			block++
		}
	}
	return pending
}

// place allocates the blocks that are live at the start, by address, in an empty cache, because the
// free memory under other options is unknown.
func (m *machine) place() error { return m.placeIf(func(int32) bool { return true }) }

// placeIf is place for the wanted blocks only.
func (m *machine) placeIf(wanted func(block int32) bool) error {
	if m.p.Start == nil {
		return nil
	}
	block := int32(-1)
	for i := range m.p.Start.Segments {
		s := &m.p.Start.Segments[i]
		for _, b := range s.Blocks {
			if block++; !wanted(block) {
				continue
			}
			var err error
			m.blocks[block], err = m.cache.Alloc(m.pools.context(s.Pool), b.Requested, m.byID[s.Stream])
			if err != nil && !errors.Is(err, memcache.ErrOutOfMemory) {
				return err
			}
		}
	}
	return m.freePending()
}
